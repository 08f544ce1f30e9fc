// Convolutions through cuDNN: y = relu(conv(x, w) + bias), everything NCHW outside.
//
// config 0: the first engine of the graph interface that runs, NCHW, else the older interface.
// config 1 + 2i, 2 + 2i: the i-th engine in NCHW, and in NHWC with padded channels behind our own transposes.
// config 17: the older interface.
//
// Where all tensors are NHWC outside already (`last`): config 0 is the first engine that runs, 1 + i the i-th; no bias, no ReLU.

#include "convolution_layout.cuh"
#include "convolution_legacy.h"
#include "convolution_plan.h"

namespace convolution {
namespace {

constexpr int kEngines = 8;
// The tensors' numbers in a graph: x, w, y.
const std::vector<int64_t> kIds = {1, 2, 3};
constexpr int kLegacyConfig = 1 + 2 * kEngines;

struct Choice {
  bool legacy = false, last = false;
  Shared plan;
  const Legacy* old = nullptr;
  int64_t in_channels = 0, out_channels = 0;
  // Bytes of the workspace's parts, in this order.
  int64_t x_bytes = 0, w_bytes = 0, y_bytes = 0, engine_bytes = 0;
};

int64_t rounded(int64_t bytes) { return (bytes + 255) / 256 * 256; }

std::vector<int64_t> key_of(const long long* numbers, int device, int kind) {
  std::vector<int64_t> key(numbers, numbers + 10 + 7 * numbers[0]);
  key[8] = 0;  // the ReLU is ours
  key.push_back(device);
  key.push_back(kind);
  return key;
}

Graph* graph_of(const long long* numbers, const Geometry& g, const Choice& c, cudnnHandle_t handle, int device) {
  static std::map<std::vector<int64_t>, std::unique_ptr<Graph>> graphs;
  auto& entry = graphs[key_of(numbers, device, c.last)];
  if (!entry) entry = make_graph(handle, g, c.in_channels, c.out_channels, c.last);
  return entry.get();
}

const Legacy* legacy_of(const long long* numbers, const Geometry& g, cudnnHandle_t handle, int device) {
  static std::map<std::vector<int64_t>, std::unique_ptr<Legacy>> known;
  auto& entry = known[key_of(numbers, device, 2)];
  if (!entry) entry = make_legacy(handle, g);
  return entry.get();
}

int choose_legacy(const long long* numbers, const Geometry& g, cudnnHandle_t handle, int device, Choice* c) {
  c->legacy = true;
  c->last = false;
  c->old = legacy_of(numbers, g, handle, device);
  if (c->old->algorithm < 0) return kNotAvailable;
  c->engine_bytes = int64_t(c->old->bytes);
  return kOk;
}

// Finds what a config stands for. Everything found is kept for later calls with the same numbers.
int choose(const long long* numbers, const Geometry& g, int config, cudnnHandle_t handle, int device, Choice* c) {
  if (!g.last && config == kLegacyConfig) return choose_legacy(numbers, g, handle, device, c);
  const int64_t multiple = g.type == kFloat32 ? 4 : 8;
  auto padded = [&](int64_t channels) {
    return c->last && !g.last && g.groups == 1 ? (channels + multiple - 1) / multiple * multiple : channels;
  };
  c->last = g.last || (config > 0 && config % 2 == 0);
  c->in_channels = padded(g.in_channels);
  c->out_channels = padded(g.out_channels);
  Graph* graph = graph_of(numbers, g, *c, handle, device);
  const int first = config == 0 ? 0 : g.last ? config - 1 : (config - 1) / 2;
  const int end = config == 0 ? static_cast<int>(graph->engines.size()) : first + 1;
  for (int index = first; index < end && !c->plan; ++index) {
    const auto built = plan(handle, *graph, index);
    if (config == 0 && built.second > kUsualWorkspace) continue;
    c->plan = built.first;
    c->engine_bytes = built.second;
  }
  if (!c->plan) return config == 0 && !g.last ? choose_legacy(numbers, g, handle, device, c) : kNotAvailable;
  if (c->last && !g.last) {
    const int64_t rows = g.transposed ? c->in_channels : c->out_channels;
    const int64_t columns = (g.transposed ? c->out_channels : c->in_channels) / g.groups;
    c->x_bytes = rounded(g.batch * c->in_channels * g.in_size() * g.width());
    c->w_bytes = rounded(rows * columns * g.filter_size() * g.width());
    c->y_bytes = rounded(g.batch * c->out_channels * g.out_size() * g.width());
  }
  return kOk;
}

template <typename T>
int run_nhwc(const Geometry& g, const Choice& c, cudnnHandle_t handle, void* y, const void* x, const void* w,
             const void* bias, char* workspace, cudaStream_t stream) {
  void* x_last = workspace;
  void* w_last = workspace + c.x_bytes;
  void* y_last = workspace + c.x_bytes + c.w_bytes;
  void* rest = workspace + c.x_bytes + c.w_bytes + c.y_bytes;
  const int64_t rows = g.transposed ? g.in_channels : g.out_channels;
  const int64_t columns = (g.transposed ? g.out_channels : g.in_channels) / g.groups;
  const int64_t padded_rows = g.transposed ? c.in_channels : c.out_channels;
  const int64_t padded_columns = (g.transposed ? c.out_channels : c.in_channels) / g.groups;
  const int64_t row_bytes = padded_columns * g.filter_size() * g.width();
  if (padded_rows > rows && cudaMemsetAsync(static_cast<char*>(w_last) + rows * row_bytes, 0,
                                            (padded_rows - rows) * row_bytes, stream) != cudaSuccess)
    return kLibrary;
  if (!to_nhwc<T>(w, w_last, columns, g.filter_size(), padded_columns, rows, stream)) return kLibrary;
  if (!to_nhwc<T>(x, x_last, g.in_channels, g.in_size(), c.in_channels, g.batch, stream)) return kLibrary;
  const int status = execute(handle, *c.plan, kIds, {x_last, w_last, y_last}, rest);
  if (status) return status;
  return to_nchw<T>(y_last, y, bias, g.out_channels, g.out_size(), c.out_channels, g.batch, int(g.relu), stream) ? kOk
                                                                                                               : kLibrary;
}

template <typename T>
int run(const Geometry& g, const Choice& c, cudnnHandle_t handle, void* y, const void* x, const void* w, const void* bias,
        char* workspace, cudaStream_t stream) {
  if (c.last && !g.last) return run_nhwc<T>(g, c, handle, y, x, w, bias, workspace, stream);
  const int status = c.legacy ? run_legacy(handle, g, *c.old, x, w, y, workspace)
                              : execute(handle, *c.plan, kIds, {x, w, y}, workspace);
  if (status || (!bias && !g.relu)) return status;
  const int64_t planes = g.batch * g.out_channels;
  return tail<T>(y, bias, g.out_channels, g.out_size(), planes, int(g.relu), stream) ? kOk : kLibrary;
}

}  // namespace
}  // namespace convolution

// The bytes that launch_convolution needs in `workspace` for this config. `geometry`: spatial dimensions (2 or 3), batch,
// input channels, output channels, groups, transposed, type (0 float32, 1 bfloat16, 2 float16), TF32 allowed, ReLU behind,
// all tensors NHWC (then neither bias nor ReLU);
// then for each spatial dimension: input and output size, filter size, padding before and after, stride, dilation.
// Returns 0, -1 when the config isn't available, -2 on a library error.
extern "C" int convolution_workspace(const long long* geometry, int config, long long* bytes) {
  using namespace convolution;
  const std::lock_guard<std::mutex> guard(lock());
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return kLibrary;
  cudnnHandle_t handle = handle_of(device);
  if (!handle) return kLibrary;
  Choice c;
  const int status = choose(geometry, Geometry(geometry), config, handle, device, &c);
  *bytes = c.x_bytes + c.w_bytes + c.y_bytes + rounded(c.engine_bytes);
  return status;
}

// x [batch, in, ...], w [out, in / groups, ...] (transposed: [in, out / groups, ...]), bias [out] or null -> y [batch, out, ...],
// all contiguous. Returns as convolution_workspace does.
extern "C" int launch_convolution(void* y, const void* x, const void* w, const void* bias, const long long* geometry,
                                  void* workspace, int config, cudaStream_t stream) {
  using namespace convolution;
  const std::lock_guard<std::mutex> guard(lock());
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return kLibrary;
  cudnnHandle_t handle = handle_of(device);
  if (!handle || cudnnSetStream(handle, stream) != CUDNN_STATUS_SUCCESS) return kLibrary;
  const Geometry g(geometry);
  Choice c;
  if (const int status = choose(geometry, g, config, handle, device, &c)) return status;
  char* space = static_cast<char*>(workspace);
  if (g.type == kFloat32) return run<float>(g, c, handle, y, x, w, bias, space, stream);
  if (g.type == kBFloat16) return run<__nv_bfloat16>(g, c, handle, y, x, w, bias, space, stream);
  return run<__half>(g, c, handle, y, x, w, bias, space, stream);
}
