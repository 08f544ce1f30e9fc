// cuDNN's older interface for the same convolution, NCHW only: what remains where no engine of the graph interface runs.
#pragma once

#include "convolution_plan.h"

namespace convolution {

struct Legacy {
  cudnnTensorDescriptor_t x = nullptr, y = nullptr;
  cudnnFilterDescriptor_t w = nullptr;
  cudnnConvolutionDescriptor_t convolution = nullptr;
  int algorithm = -1;
  size_t bytes = 0;
  ~Legacy() {
    if (x) cudnnDestroyTensorDescriptor(x);
    if (y) cudnnDestroyTensorDescriptor(y);
    if (w) cudnnDestroyFilterDescriptor(w);
    if (convolution) cudnnDestroyConvolutionDescriptor(convolution);
  }
};

inline bool legacy_tensor(cudnnTensorDescriptor_t* made, const Geometry& g, int64_t channels, int64_t Axis::*extent) {
  int dims[5] = {int(g.batch), int(channels)}, strides[5];
  const int rank = int(g.spatial) + 2;
  for (int i = 2; i < rank; ++i) dims[i] = int(g.axis[i - 2].*extent);
  strides[rank - 1] = 1;
  for (int i = rank - 2; i >= 0; --i) strides[i] = strides[i + 1] * dims[i + 1];
  return cudnnCreateTensorDescriptor(made) == CUDNN_STATUS_SUCCESS &&
         cudnnSetTensorNdDescriptor(*made, data_type(g), rank, dims, strides) == CUDNN_STATUS_SUCCESS;
}

inline bool legacy_describe(Legacy& l, const Geometry& g) {
  const int64_t rows = g.transposed ? g.in_channels : g.out_channels;
  int filter[5] = {int(rows), int((g.transposed ? g.out_channels : g.in_channels) / g.groups)};
  int pad[3], stride[3], dilation[3];
  for (int i = 0; i < int(g.spatial); ++i) {
    if (g.axis[i].before != g.axis[i].after) return false;
    filter[i + 2] = int(g.axis[i].filter);
    pad[i] = int(g.axis[i].before);
    stride[i] = int(g.axis[i].stride);
    dilation[i] = int(g.axis[i].dilation);
  }
  const cudnnMathType_t math = g.type == kFloat32 && !g.tf32 ? CUDNN_FMA_MATH : CUDNN_DEFAULT_MATH;
  return legacy_tensor(&l.x, g, g.in_channels, &Axis::in) && legacy_tensor(&l.y, g, g.out_channels, &Axis::out) &&
         cudnnCreateFilterDescriptor(&l.w) == CUDNN_STATUS_SUCCESS &&
         cudnnSetFilterNdDescriptor(l.w, data_type(g), CUDNN_TENSOR_NCHW, int(g.spatial) + 2, filter) ==
             CUDNN_STATUS_SUCCESS &&
         cudnnCreateConvolutionDescriptor(&l.convolution) == CUDNN_STATUS_SUCCESS &&
         cudnnSetConvolutionNdDescriptor(l.convolution, int(g.spatial), pad, stride, dilation, CUDNN_CROSS_CORRELATION,
                                         CUDNN_DATA_FLOAT) == CUDNN_STATUS_SUCCESS &&
         cudnnSetConvolutionGroupCount(l.convolution, int(g.groups)) == CUDNN_STATUS_SUCCESS &&
         cudnnSetConvolutionMathType(l.convolution, math) == CUDNN_STATUS_SUCCESS;
}

// Picks the first algorithm that the library's heuristic offers within the workspace limit and the precision policy.
template <typename Performance>
bool legacy_pick(Legacy& l, const Geometry& g, const Performance* offers, int count) {
  for (int i = 0; i < count; ++i) {
    const bool full = g.type == kFloat32 && !g.tf32;
    if (offers[i].status != CUDNN_STATUS_SUCCESS || int64_t(offers[i].memory) > kUsualWorkspace) continue;
    if (full && offers[i].mathType != CUDNN_FMA_MATH && offers[i].mathType != CUDNN_DEFAULT_MATH) continue;
    if (!full && cudnnSetConvolutionMathType(l.convolution, offers[i].mathType) != CUDNN_STATUS_SUCCESS) continue;
    l.algorithm = offers[i].algo;
    l.bytes = offers[i].memory;
    return true;
  }
  return false;
}

inline std::unique_ptr<Legacy> make_legacy(cudnnHandle_t handle, const Geometry& g) {
  auto made = std::make_unique<Legacy>();
  int count = 0;
  if (!legacy_describe(*made, g)) return made;
  if (g.transposed) {
    cudnnConvolutionBwdDataAlgoPerf_t offers[CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT];
    if (cudnnGetConvolutionBackwardDataAlgorithm_v7(handle, made->w, made->x, made->convolution, made->y,
                                                    CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT, &count,
                                                    offers) == CUDNN_STATUS_SUCCESS)
      legacy_pick(*made, g, offers, count);
  } else {
    cudnnConvolutionFwdAlgoPerf_t offers[CUDNN_CONVOLUTION_FWD_ALGO_COUNT];
    if (cudnnGetConvolutionForwardAlgorithm_v7(handle, made->x, made->w, made->convolution, made->y,
                                               CUDNN_CONVOLUTION_FWD_ALGO_COUNT, &count, offers) == CUDNN_STATUS_SUCCESS)
      legacy_pick(*made, g, offers, count);
  }
  return made;
}

inline int run_legacy(cudnnHandle_t handle, const Geometry& g, const Legacy& l, const void* x, const void* w, void* y,
                      void* workspace) {
  const float one = 1.0f, zero = 0.0f;
  const cudnnStatus_t status =
      g.transposed ? cudnnConvolutionBackwardData(handle, &one, l.w, w, l.x, x, l.convolution,
                                                  static_cast<cudnnConvolutionBwdDataAlgo_t>(l.algorithm), workspace,
                                                  l.bytes, &zero, l.y, y)
                   : cudnnConvolutionForward(handle, &one, l.x, x, l.w, w, l.convolution,
                                             static_cast<cudnnConvolutionFwdAlgo_t>(l.algorithm), workspace, l.bytes,
                                             &zero, l.y, y);
  return status == CUDNN_STATUS_SUCCESS ? kOk : kLibrary;
}

}  // namespace convolution
