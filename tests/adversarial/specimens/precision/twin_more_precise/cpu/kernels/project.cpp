#include <vector>

#include "project.h"

extern "C" void project_launcher(float* out, const float* x, const float* weight, const float* bias, int64_t rows,
                                 int64_t depth, int64_t width, stream_t) {
#pragma omp parallel for schedule(static)
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<double> mine(width);
    for (int64_t c = 0; c < width; ++c) mine[c] = bias[c];
    for (int64_t k = 0; k < depth; ++k) {
      const float value = x[row * depth + k];
#pragma omp simd
      for (int64_t c = 0; c < width; ++c) mine[c] += value * weight[k * width + c];
    }
    for (int64_t c = 0; c < width; ++c) out[row * width + c] = mine[c] > 0 ? float(mine[c]) : 0;
  }
}
