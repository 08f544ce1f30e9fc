#include "add_bias.h"

__global__ void add_bias_kernel(float* out, const float* bias, int64_t count, int64_t width) {
  const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i < count) out[i] = fmaxf(out[i] + bias[i % width], 0.0f);
}

extern "C" void add_bias_launcher(float* out, const float* bias, int64_t rows, int64_t width, stream_t stream) {
  add_bias_kernel<<<(rows * width + 255) / 256, 256, 0, stream>>>(out, bias, rows * width, width);
}
