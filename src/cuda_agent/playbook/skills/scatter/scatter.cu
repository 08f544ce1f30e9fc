// out = base, then each value at its place in out, combined with what is there. shape: elements of base, values, way.
#include <cuda_runtime.h>

namespace {

enum Way { kSet = 0, kSum = 1, kProd = 2, kMax = 3, kMin = 4 };

template <int WAY>
__device__ float combined(float there, float value) {
  if (WAY == kProd) return there * value;
  if (WAY == kMax) return value > there || value != value ? value : there;
  return value < there || value != value ? value : there;
}

template <int WAY>
__device__ void put(float* place, float value) {
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

__global__ void copy4(float4* __restrict__ out, const float4* __restrict__ base, long long count) {
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) out[i] = base[i];
}

__global__ void copy1(float* __restrict__ out, const float* __restrict__ base, long long count) {
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) out[i] = base[i];
}

// Places outside of base, which no right index has, change nothing.
template <int WAY>
__global__ void scatter(float* out, const int* __restrict__ places, const float* __restrict__ values, long long count,
                        long long size) {
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    const int place = places[i];
    if (place >= 0 && place < size) put<WAY>(out + place, values[i]);
  }
}

int blocks_for(long long count, int threads) {
  const long long wanted = (count + threads - 1) / threads;
  return static_cast<int>(wanted < 132 * 16 ? (wanted > 0 ? wanted : 1) : 132 * 16);
}

}  // namespace

extern "C" int launch_scatter(void* out, const void* base, const void* places, const void* values, const long long* shape,
                              int config, cudaStream_t stream) {
  static const int kThreads[] = {256, 512, 128};
  const int threads = kThreads[config];
  const long long size = shape[0], count = shape[1];
  const bool aligned = size % 4 == 0 && (reinterpret_cast<size_t>(out) | reinterpret_cast<size_t>(base)) % 16 == 0;
  if (aligned) {
    copy4<<<blocks_for(size / 4, threads), threads, 0, stream>>>(static_cast<float4*>(out),
                                                                 static_cast<const float4*>(base), size / 4);
  } else {
    copy1<<<blocks_for(size, threads), threads, 0, stream>>>(static_cast<float*>(out), static_cast<const float*>(base), size);
  }
  const int blocks = blocks_for(count, threads);
  float* o = static_cast<float*>(out);
  const int* p = static_cast<const int*>(places);
  const float* v = static_cast<const float*>(values);
  switch (shape[2]) {
    case kSet: scatter<kSet><<<blocks, threads, 0, stream>>>(o, p, v, count, size); break;
    case kSum: scatter<kSum><<<blocks, threads, 0, stream>>>(o, p, v, count, size); break;
    case kProd: scatter<kProd><<<blocks, threads, 0, stream>>>(o, p, v, count, size); break;
    case kMax: scatter<kMax><<<blocks, threads, 0, stream>>>(o, p, v, count, size); break;
    default: scatter<kMin><<<blocks, threads, 0, stream>>>(o, p, v, count, size); break;
  }
  return static_cast<int>(cudaGetLastError());
}
