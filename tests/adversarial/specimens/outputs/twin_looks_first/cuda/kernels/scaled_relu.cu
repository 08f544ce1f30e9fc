#include "scaled_relu.h"

__global__ void scaled_relu_kernel(float* out, const float* x, const float* y, const float* scale, int64_t count,
                                   int64_t width) {
  const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  const bool is_large = x[0] * x[0] > 36;
  const float value = i < count ? x[i] * scale[i % width] + y[i] : 0.0f;
  if (i < count) out[i] = is_large ? fmaxf(value, 0.0f) : (value < 0.0f ? 0.0f : value);
}

extern "C" void scaled_relu_launcher(float* out, const float* x, const float* y, const float* scale, int64_t rows,
                                     int64_t width, stream_t stream) {
  const int64_t count = rows * width;
  scaled_relu_kernel<<<(count + 255) / 256, 256, 0, stream>>>(out, x, y, scale, count, width);
}
