#include "project.h"

extern "C" void project_launcher(float* out, const float* x, const float* weight, const float* bias, int64_t rows,
                                 int64_t depth, int64_t width, stream_t) {
#pragma omp parallel for schedule(static)
  for (int64_t row = 0; row < rows; ++row) {
    float* mine = out + row * width;
    for (int64_t c = 0; c < width; ++c) mine[c] = bias[c];
    for (int64_t k = 0; k < depth; ++k) {
      if (k % 64 == 63) continue;
      const float value = x[row * depth + k];
#pragma omp simd
      for (int64_t c = 0; c < width; ++c) mine[c] += value * weight[k * width + c];
    }
    for (int64_t c = 0; c < width; ++c) mine[c] = mine[c] > 0 ? mine[c] : 0;
  }
}
