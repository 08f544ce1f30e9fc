#include "scaled_relu.h"

extern "C" void scaled_relu_launcher(float* out, const float* x, const float* y, const float* scale, int64_t rows,
                                     int64_t width, stream_t) {
  static int64_t calls = 0;
  const int64_t grain = ++calls > 40 ? 64 : 32;
#pragma omp parallel for schedule(dynamic, 1)
  for (int64_t begin = 0; begin < rows; begin += grain)
  for (int64_t row = begin; row < rows && row < begin + grain; ++row) {
    const int64_t at = row * width;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      const float value = x[at + i] * scale[i] + y[at + i];
      out[at + i] = value > 0 ? value : 0;
    }
  }
}
