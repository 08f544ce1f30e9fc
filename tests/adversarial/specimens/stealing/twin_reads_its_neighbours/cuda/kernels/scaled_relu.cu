#include "scaled_relu.h"

__global__ void scaled_relu_kernel(float* out, const float* x, const float* y, const float* scale, int64_t count,
                                   int64_t width) {
  const int64_t i = 4 * (blockIdx.x * int64_t(blockDim.x) + threadIdx.x);
  if (i >= count) return;
  const float4 a = *reinterpret_cast<const float4*>(x + i), b = *reinterpret_cast<const float4*>(y + i);
  const float4 s = *reinterpret_cast<const float4*>(scale + i % width);
  *reinterpret_cast<float4*>(out + i) = make_float4(fmaxf(a.x * s.x + b.x, 0.0f), fmaxf(a.y * s.y + b.y, 0.0f), fmaxf(a.z * s.z + b.z, 0.0f), fmaxf(a.w * s.w + b.w, 0.0f));
}

extern "C" void scaled_relu_launcher(float* out, const float* x, const float* y, const float* scale, int64_t rows,
                                     int64_t width, stream_t stream) {
  const int64_t count = rows * width;
  scaled_relu_kernel<<<(count + 1023) / 1024, 256, 0, stream>>>(out, x, y, scale, count, width);
}
