#include <cublas_v2.h>

#include "add_bias.h"

__global__ void add_bias_kernel(float* out, const float* bias, int64_t count, int64_t width) {
  const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i < count) out[i] = fmaxf(out[i] + bias[i % width], 0.0f);
}

extern "C" void add_bias_launcher(float* out, const float* bias, int64_t rows, int64_t width, stream_t stream) {
  add_bias_kernel<<<(rows * width + 255) / 256, 256, 0, stream>>>(out, bias, rows * width, width);
}

extern "C" void vendor_product(float* out, const float* x, const float* weight, int64_t rows, int64_t depth, int64_t width,
                               stream_t stream) {
  static cublasHandle_t handle = nullptr;
  if (!handle) cublasCreate(&handle);
  cublasSetStream(handle, stream);
  const float one = 1, zero = 0;
  cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, width, rows, depth, &one, weight, width, x, depth, &zero, out, width);
}
