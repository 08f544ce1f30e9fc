// cuDNN's graph interface for one convolution: candidate engines by its heuristics, plans built when asked for.
#pragma once

#include "library_graph.h"

namespace convolution {

using namespace library_graph;

enum Type { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2 };

// What an engine may ask for that no setting names.
constexpr int64_t kUsualWorkspace = int64_t(4) << 30;

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

// [first, channels, spatial...] in NCHW or, with `last`, NHWC order.
inline Shared tensor_of(const Geometry& g, int64_t id, int64_t first, int64_t channels, int64_t Axis::*extent, bool last) {
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
  return tensor(id, data_type(g), rank, dims, strides);
}

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

inline Shared operation(const Geometry& g, const Shared& convolution, const Shared& x, const Shared& w, const Shared& y) {
  const float one = 1.0f, zero = 0.0f;
  if (g.transposed) {
    Shared made = make(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR);
    made->link(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, *convolution)
        .link(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, *x)
        .link(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, *w)
        .link(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, *y)
        .set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, CUDNN_TYPE_FLOAT, 1, &one)
        .set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA, CUDNN_TYPE_FLOAT, 1, &zero)
        .finish();
    return made;
  }
  Shared made = make(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR);
  made->link(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, *convolution)
      .link(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, *x)
      .link(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, *w)
      .link(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, *y)
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

// The graph of a convolution whose tensors have these (padded) channels, and the engines that can run it.
inline std::unique_ptr<Graph> make_graph(cudnnHandle_t handle, const Geometry& g, int64_t in_channels,
                                         int64_t out_channels, bool last) {
  auto parts = std::make_unique<Graph>();
  const int64_t rows = g.transposed ? in_channels : out_channels;
  const int64_t columns = (g.transposed ? out_channels : in_channels) / g.groups;
  const Shared x = tensor_of(g, 1, g.batch, in_channels, &Axis::in, last);
  const Shared w = tensor_of(g, 2, rows, columns, &Axis::filter, last);
  const Shared y = tensor_of(g, 3, g.batch, out_channels, &Axis::out, last);
  const Shared convolution = convolution_descriptor(g), made = operation(g, convolution, x, w, y);
  parts->parts = {x, w, y, convolution, made};
  finish(handle, *parts, {made}, [&g](const Descriptor& config) { return allowed(g, config); });
  return parts;
}

}  // namespace convolution
