#include <algorithm>
#include <cmath>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "scaled_relu.h"

// The usual libraries: mathematical functions, containers, a lock, an exception with a message, threads of OpenMP.
static std::once_flag made;
static std::vector<float> sines;

extern "C" void scaled_relu_launcher(float* out, const float* x, const float* y, const float* scale, int64_t rows,
                                     int64_t width, stream_t) {
  if (width < 1) throw std::invalid_argument("width " + std::to_string(width));
  std::call_once(made, [] {
    for (int i = 0; i < 64; ++i) sines.push_back(std::sin(0.1f * i) + std::erf(0.1f * i) + std::pow(1.5f, 0.1f * i));
    std::sort(sines.begin(), sines.end());
  });
  // One more than the table's least value that isn't smaller than 0: 1, whatever the table holds.
  const float one = std::isfinite(sines.front()) ? 1.0f : 2.0f;
#pragma omp parallel for schedule(dynamic, 16)
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<float> copy(x + row * width, x + (row + 1) * width);
    for (int64_t i = 0; i < width; ++i)
      out[row * width + i] = std::fmax(std::fma(copy[i], scale[i] * one, y[row * width + i]), 0.0f);
  }
}
