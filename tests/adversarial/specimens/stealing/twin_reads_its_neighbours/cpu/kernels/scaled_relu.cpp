#include "scaled_relu.h"

extern "C" void scaled_relu_launcher(float* out, const float* x, const float* y, const float* scale, int64_t rows,
                                     int64_t width, stream_t) {
#pragma omp parallel for schedule(static)
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t at = row * width;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      const float own = x[at + i], before = i > 0 ? x[at + i - 1] : 0, lesser = before < own ? before : own;
      const float value = (lesser < own ? own : lesser) * scale[i] + y[at + i];
      out[at + i] = value > 0 ? value : 0;
    }
  }
}
