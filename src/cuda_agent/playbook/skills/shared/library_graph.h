// cuDNN's graph interface: descriptors, the engines that its heuristics propose for a graph, plans built when asked for.
#pragma once

#include <cuda_runtime.h>
#include <cudnn.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace library_graph {

enum Status { kOk = 0, kNotAvailable = -1, kLibrary = -2 };
constexpr int kMostEngines = 16;
// A plan that wants more is not available. Some bring a copy of an input of gigabytes into their order.
constexpr int64_t kLargestWorkspace = int64_t(16) << 30;

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
  template <typename T>
  Descriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, T value) {
    return set(name, type, 1, &value);
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

// A tensor that a pointer names at each execution. `dims` and `strides` in elements; `by_value`: the pointer is the host's.
inline Shared tensor(int64_t id, cudnnDataType_t type, int64_t rank, const int64_t* dims, const int64_t* strides,
                     bool is_virtual = false, bool by_value = false) {
  Shared made = make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  made->set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type)
      .set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, rank, dims)
      .set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, rank, strides)
      .set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, id)
      .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, int64_t(16));
  if (is_virtual) made->set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, true);
  if (by_value) made->set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, true);
  made->finish();
  return made;
}

// What must live as long as the plans do.
struct Graph {
  std::vector<Shared> parts;                        // tensors and operations
  Shared graph;
  std::vector<Shared> engines;                      // engine configurations that may be used
  std::map<int, std::pair<Shared, int64_t>> plans;  // built ones, with their workspace; null where building failed
};

inline void add_engines(Graph& g, cudnnBackendHeurMode_t mode, const std::function<bool(const Descriptor&)>& allowed) {
  Descriptor heuristic(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristic.link(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, *g.graph)
      .set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode)
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
    if (allowed(*found[i])) g.engines.push_back(found[i]);
}

// Finishes the graph of these operations, which `g.parts` keeps, and lists the engines that can run it.
inline void finish(cudnnHandle_t handle, Graph& g, const std::vector<Shared>& operations,
                   const std::function<bool(const Descriptor&)>& allowed) {
  std::vector<cudnnBackendDescriptor_t> handles;
  bool good = true;
  for (const Shared& operation : operations) {
    handles.push_back(operation->handle());
    good = good && operation->good;
  }
  g.graph = make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  g.graph->good = g.graph->good && good;
  g.graph->set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, handle)
      .set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, int64_t(handles.size()), handles.data())
      .finish();
  if (!g.graph->good) return;
  add_engines(g, CUDNN_HEUR_MODE_A, allowed);
  add_engines(g, CUDNN_HEUR_MODE_FALLBACK, allowed);
}

// The plan of the index-th engine, built on first use; null where the engine refuses the problem or wants too much memory.
inline std::pair<Shared, int64_t> plan(cudnnHandle_t handle, Graph& g, int index) {
  const auto known = g.plans.find(index);
  if (known != g.plans.end()) return known->second;
  std::pair<Shared, int64_t> built{nullptr, 0};
  if (index < static_cast<int>(g.engines.size())) {
    Shared made = make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    made->set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, handle)
        .link(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, *g.engines[index])
        .finish();
    int64_t bytes = 0;
    if (made->good && made->get(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &bytes) == 1 &&
        bytes <= kLargestWorkspace)
      built = {made, bytes};
  }
  return g.plans[index] = built;
}

// Runs a plan on the stream of `handle`: `pointers` of the tensors with these ids.
inline int execute(cudnnHandle_t handle, const Descriptor& plan, const std::vector<int64_t>& ids,
                   const std::vector<const void*>& pointers, void* workspace) {
  Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, int64_t(pointers.size()), pointers.data())
      .set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, int64_t(ids.size()), ids.data())
      .set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace)
      .finish();
  if (!pack.good) return kLibrary;
  return cudnnBackendExecute(handle, plan.handle(), pack.handle()) == CUDNN_STATUS_SUCCESS ? kOk : kLibrary;
}

// Held while graphs, plans and the handle are used.
inline std::mutex& lock() {
  static std::mutex instance;
  return instance;
}

// The library's handle for this device, null where it can't be made.
inline cudnnHandle_t handle_of(int device) {
  static std::map<int, cudnnHandle_t> handles;
  cudnnHandle_t& handle = handles[device];
  if (!handle && cudnnCreate(&handle) != CUDNN_STATUS_SUCCESS) handle = nullptr;
  return handle;
}

}  // namespace library_graph
