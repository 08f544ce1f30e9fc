// How a number meets the one that is there.
#pragma once
#include <cuda_runtime.h>

enum Way { kSet = 0, kSum = 1, kProd = 2, kMax = 3, kMin = 4 };

template <int WAY>
__device__ __forceinline__ float combined(float there, float value) {
  if (WAY == kSet) return value;
  if (WAY == kSum) return there + value;
  if (WAY == kProd) return there * value;
  if (WAY == kMax) return value > there || value != value ? value : there;
  return value < there || value != value ? value : there;
}

template <int WAY>
__device__ __forceinline__ void put(float* place, float value) {
  if (WAY == kSet) {
    *place = value;
  } else if (WAY == kSum) {
    atomicAdd(place, value);
  } else {
    unsigned* bits = reinterpret_cast<unsigned*>(place);
    unsigned there = *bits, before;
    do {
      before = there;
      there = atomicCAS(bits, before, __float_as_uint(combined<WAY>(__uint_as_float(before), value)));
    } while (there != before);
  }
}
