// out = base, then each value at its place in out, combined with what is there. shape: elements of base, values, way.
#include <cstdint>

namespace {

enum Way { kSet = 0, kSum = 1, kProd = 2, kMax = 3, kMin = 4 };

// Largest and smallest have no atomic form in OpenMP 4.5; they are rare, and one thread does them.
void extremes(float* out, const int32_t* places, const float* values, int64_t count, int64_t size, bool largest) {
  for (int64_t i = 0; i < count; ++i) {
    const int32_t place = places[i];
    if (place < 0 || place >= size) continue;
    const float value = values[i];
    if (value != value || (largest ? value > out[place] : value < out[place])) out[place] = value;
  }
}

}  // namespace

extern "C" int launch_scatter(void* out_, const void* base_, const void* places_, const void* values_,
                              const long long* shape) {
  float* out = static_cast<float*>(out_);
  const float* base = static_cast<const float*>(base_);
  const int32_t* places = static_cast<const int32_t*>(places_);
  const float* values = static_cast<const float*>(values_);
  const int64_t size = shape[0], count = shape[1];
#pragma omp parallel for simd
  for (int64_t i = 0; i < size; ++i) out[i] = base[i];
  if (shape[2] == kMax || shape[2] == kMin) {
    extremes(out, places, values, count, size, shape[2] == kMax);
    return 0;
  }
  const int way = static_cast<int>(shape[2]);
#pragma omp parallel for
  for (int64_t i = 0; i < count; ++i) {
    const int32_t place = places[i];
    if (place < 0 || place >= size) continue;
    if (way == kSet) {
      out[place] = values[i];
    } else if (way == kSum) {
#pragma omp atomic
      out[place] += values[i];
    } else {
#pragma omp atomic
      out[place] *= values[i];
    }
  }
  return 0;
}
