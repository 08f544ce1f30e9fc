// cuDNN's graph interface for one convolution: candidate engines by its heuristics, plans built when asked for.
#pragma once

#include <cuda_runtime.h>
#include <cudnn.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace convolution {

enum Status { kOk = 0, kNotAvailable = -1, kLibrary = -2 };
enum Type { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2 };

// What an engine may ask for unasked, and one that a setting names: some bring a copy of x of gigabytes into their order.
constexpr int64_t kUsualWorkspace = int64_t(4) << 30, kLargestWorkspace = int64_t(16) << 30;
constexpr int kMostEngines = 16;

// A convolution as the caller describes it; `axis[i]` are the spatial dimensions, outermost first.
struct Axis {
  int64_t in, out, filter, before, after, stride, dilation;
};

struct Geometry {
  int64_t spatial, batch, in_channels, out_channels, groups, transposed, type, tf32, relu, last;
  Axis axis[3];

  explicit Geometry(const long long* g)
      : spatial(g[0]), batch(g[1]), in_channels(g[2]), out_channels(g[3]), groups(g[4]), transposed(g[5]), type(g[6]),
        tf32(g[7]), relu(g[8]), last(g[9]) {
    for (int64_t i = 0; i < spatial; ++i) {
      const long long* a = g + 10 + 7 * i;
      axis[i] = {a[0], a[1], a[2], a[3], a[4], a[5], a[6]};
    }
  }
  int64_t in_size() const { return product(&Axis::in); }
  int64_t out_size() const { return product(&Axis::out); }
  int64_t filter_size() const { return product(&Axis::filter); }
  int64_t width() const { return type == kFloat32 ? 4 : 2; }

 private:
  int64_t product(int64_t Axis::*member) const {
    int64_t total = 1;
    for (int64_t i = 0; i < spatial; ++i) total *= axis[i].*member;
    return total;
  }
};

inline cudnnDataType_t data_type(const Geometry& g) {
  return g.type == kFloat32 ? CUDNN_DATA_FLOAT : g.type == kBFloat16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
}

// Owns one backend descriptor. Any failed step leaves `good` false.
class Descriptor {
 public:
  explicit Descriptor(cudnnBackendDescriptorType_t type) {
    good = cudnnBackendCreateDescriptor(type, &handle_) == CUDNN_STATUS_SUCCESS;
  }
  ~Descriptor() {
    if (handle_) cudnnBackendDestroyDescriptor(handle_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  template <typename T>
  Descriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count, const T* values) {
    good = good && cudnnBackendSetAttribute(handle_, name, type, count, values) == CUDNN_STATUS_SUCCESS;
    return *this;
  }
  Descriptor& link(cudnnBackendAttributeName_t name, const Descriptor& other) {
    good = good && other.good;
    return set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &other.handle_);
  }
  template <typename T>
  int64_t get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t room, T* values) const {
    int64_t count = 0;
    const auto status = cudnnBackendGetAttribute(handle_, name, type, room, &count, values);
    return good && status == CUDNN_STATUS_SUCCESS ? count : -1;
  }
  Descriptor& finish() {
    good = good && cudnnBackendFinalize(handle_) == CUDNN_STATUS_SUCCESS;
    return *this;
  }
  cudnnBackendDescriptor_t handle() const { return handle_; }

  bool good = false;

 private:
  cudnnBackendDescriptor_t handle_ = nullptr;
};

using Shared = std::shared_ptr<Descriptor>;

inline Shared make(cudnnBackendDescriptorType_t type) { return std::make_shared<Descriptor>(type); }

// [first, channels, spatial...] in NCHW or, with `last`, NHWC order.
inline Shared tensor(const Geometry& g, int64_t id, int64_t first, int64_t channels, int64_t Axis::*extent, bool last) {
  int64_t dims[5] = {first, channels}, strides[5];
  const int64_t rank = g.spatial + 2;
  for (int64_t i = 0; i < g.spatial; ++i) dims[i + 2] = g.axis[i].*extent;
  int64_t step = last ? channels : 1;
  for (int64_t i = rank - 1; i >= 2; --i) {
    strides[i] = step;
    step *= dims[i];
  }
  strides[1] = last ? 1 : step;
  strides[0] = last ? step : step * channels;
  const cudnnDataType_t type = data_type(g);
  const int64_t alignment = 16;
  Shared made = make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  made->set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type)
      .set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, rank, dims)
      .set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, rank, strides)
      .set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id)
      .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment)
      .finish();
  return made;
}

// What must live as long as the plans do.
struct Graph {
  Shared x, w, y, convolution, operation, graph;
  std::vector<Shared> engines;                 // engine configurations that the precision policy allows
  std::map<int, std::pair<Shared, int64_t>> plans;  // built ones, with their workspace; null where building failed
};

inline Shared convolution_descriptor(const Geometry& g) {
  int64_t before[3], after[3], stride[3], dilation[3];
  for (int64_t i = 0; i < g.spatial; ++i) {
    before[i] = g.axis[i].before;
    after[i] = g.axis[i].after;
    stride[i] = g.axis[i].stride;
    dilation[i] = g.axis[i].dilation;
  }
  const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
  const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
  Shared made = make(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  made->set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute)
      .set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode)
      .set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &g.spatial)
      .set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, g.spatial, before)
      .set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, g.spatial, after)
      .set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, g.spatial, stride)
      .set(CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, g.spatial, dilation)
      .finish();
  return made;
}

inline Shared operation(const Geometry& g, const Graph& parts) {
  const float one = 1.0f, zero = 0.0f;
  if (g.transposed) {
    Shared made = make(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR);
    made->link(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, *parts.convolution)
        .link(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, *parts.x)
        .link(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, *parts.w)
        .link(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, *parts.y)
        .set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, CUDNN_TYPE_FLOAT, 1, &one)
        .set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA, CUDNN_TYPE_FLOAT, 1, &zero)
        .finish();
    return made;
  }
  Shared made = make(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR);
  made->link(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, *parts.convolution)
      .link(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, *parts.x)
      .link(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, *parts.w)
      .link(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, *parts.y)
      .set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_TYPE_FLOAT, 1, &one)
      .set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, CUDNN_TYPE_FLOAT, 1, &zero)
      .finish();
  return made;
}

// Whether an engine computes within the precision policy: no tensor cores for float32 under the full policy, and never
// inputs rounded to less than TF32 or sums kept in less than float32.
inline bool allowed(const Geometry& g, const Descriptor& config) {
  Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t handle = engine.handle();
  if (config.get(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &handle) != 1) return false;
  cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
  const int64_t count =
      engine.get(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT, notes);
  for (int64_t i = 0; i < count; ++i) {
    if (notes[i] == CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS && g.type == kFloat32) return false;
    if (notes[i] == CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION) return false;
    if (notes[i] == CUDNN_NUMERICAL_NOTE_TENSOR_CORE && g.type == kFloat32 && !g.tf32) return false;
  }
  return true;
}

inline void add_engines(const Geometry& g, Graph& parts, cudnnBackendHeurMode_t mode) {
  Descriptor heuristic(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristic.link(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, *parts.graph)
      .set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode)
      .finish();
  std::vector<Shared> found;
  std::vector<cudnnBackendDescriptor_t> handles;
  for (int i = 0; i < kMostEngines; ++i) {
    found.push_back(make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
    handles.push_back(found.back()->handle());
  }
  const int64_t count =
      heuristic.get(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, kMostEngines, handles.data());
  for (int64_t i = 0; i < count && i < kMostEngines; ++i)
    if (allowed(g, *found[i])) parts.engines.push_back(found[i]);
}

// The graph of a convolution whose tensors have these (padded) channels, and the engines that can run it.
inline std::unique_ptr<Graph> make_graph(cudnnHandle_t handle, const Geometry& g, int64_t in_channels,
                                         int64_t out_channels, bool last) {
  auto parts = std::make_unique<Graph>();
  const int64_t rows = g.transposed ? in_channels : out_channels;
  const int64_t columns = (g.transposed ? out_channels : in_channels) / g.groups;
  parts->x = tensor(g, 1, g.batch, in_channels, &Axis::in, last);
  parts->w = tensor(g, 2, rows, columns, &Axis::filter, last);
  parts->y = tensor(g, 3, g.batch, out_channels, &Axis::out, last);
  parts->convolution = convolution_descriptor(g);
  parts->operation = operation(g, *parts);
  parts->graph = make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  parts->graph->set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle)
      .link(CUDNN_ATTR_OPERATIONGRAPH_OPS, *parts->operation)
      .finish();
  if (!parts->graph->good) return parts;
  add_engines(g, *parts, CUDNN_HEUR_MODE_A);
  add_engines(g, *parts, CUDNN_HEUR_MODE_FALLBACK);
  return parts;
}

// The plan of the index-th engine, built on first use; null where the engine refuses the problem or wants too much memory.
inline std::pair<Shared, int64_t> plan(cudnnHandle_t handle, Graph& parts, int index) {
  const auto known = parts.plans.find(index);
  if (known != parts.plans.end()) return known->second;
  std::pair<Shared, int64_t> built{nullptr, 0};
  if (index < static_cast<int>(parts.engines.size())) {
    Shared made = make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    made->set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle)
        .link(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, *parts.engines[index])
        .finish();
    int64_t bytes = 0;
    if (made->good && made->get(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &bytes) == 1 &&
        bytes <= kLargestWorkspace)
      built = {made, bytes};
  }
  return parts.plans[index] = built;
}

inline int execute(cudnnHandle_t handle, const Descriptor& plan, const void* x, const void* w, void* y, void* workspace) {
  const int64_t ids[3] = {1, 2, 3};
  const void* pointers[3] = {x, w, y};
  Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 3, pointers)
      .set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 3, ids)
      .set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace)
      .finish();
  if (!pack.good) return kLibrary;
  return cudnnBackendExecute(handle, plan.handle(), pack.handle()) == CUDNN_STATUS_SUCCESS ? kOk : kLibrary;
}

}  // namespace convolution
