#include <cstdint>

extern "C" void axpby_launcher(float* out, const float* x, const float* y, float alpha, float beta, int64_t size,
                               int config) {
  (void)config;
#pragma omp parallel for simd
  for (int64_t i = 0; i < size; ++i) out[i] = alpha * x[i] + beta * y[i];
}
