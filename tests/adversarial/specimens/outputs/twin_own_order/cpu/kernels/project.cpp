#include "project.h"

extern "C" void project_launcher(float* out, const float* x, const float* weight, const float* bias, int64_t rows,
                                 int64_t depth, int64_t width, stream_t) {
#pragma omp parallel for schedule(static)
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t c = 0; c < width; ++c) {
      float sum = bias[c];
      for (int64_t k = 0; k < depth; ++k) sum += x[row * depth + k] * weight[k * width + c];
      out[c * rows + row] = sum > 0 ? sum : 0;
    }
  }
}
