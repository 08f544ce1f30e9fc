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

template <int WIDTH, typename T>
struct alignas(sizeof(T) * WIDTH) Several {
  T v[WIDTH];
};

// WIDTH values a thread, so that their loads are in flight together; count: of such groups. Places outside of base, which
// no right index has, change nothing.
template <int WAY, int WIDTH>
__global__ void scatter(float* out, const Several<WIDTH, int>* __restrict__ places,
                        const Several<WIDTH, float>* __restrict__ values, long long count, long long size) {
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    const Several<WIDTH, int> place = places[i];
    const Several<WIDTH, float> value = values[i];
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) {
      if (place.v[k] >= 0 && place.v[k] < size) put<WAY>(out + place.v[k], value.v[k]);
    }
  }
}

int blocks_for(long long count, int threads) {
  const long long wanted = (count + threads - 1) / threads;
  return static_cast<int>(wanted < 132 * 16 ? (wanted > 0 ? wanted : 1) : 132 * 16);
}

bool aligned(const void* one, const void* other) {
  return (reinterpret_cast<size_t>(one) | reinterpret_cast<size_t>(other)) % 16 == 0;
}

template <int WAY>
void launch_way(float* out, const void* places, const void* values, long long count, long long size, int threads,
                cudaStream_t stream) {
  if (count % 4 == 0 && aligned(places, values)) {
    scatter<WAY, 4><<<blocks_for(count / 4, threads), threads, 0, stream>>>(
        out, static_cast<const Several<4, int>*>(places), static_cast<const Several<4, float>*>(values), count / 4, size);
  } else {
    scatter<WAY, 1><<<blocks_for(count, threads), threads, 0, stream>>>(
        out, static_cast<const Several<1, int>*>(places), static_cast<const Several<1, float>*>(values), count, size);
  }
}

}  // namespace

extern "C" int launch_scatter(void* out, const void* base, const void* places, const void* values, const long long* shape,
                              int config, cudaStream_t stream) {
  static const int kThreads[] = {256, 512, 128};
  const int threads = kThreads[config];
  const long long size = shape[0], count = shape[1];
  if (size % 4 == 0 && aligned(out, base)) {
    copy4<<<blocks_for(size / 4, threads), threads, 0, stream>>>(static_cast<float4*>(out),
                                                                 static_cast<const float4*>(base), size / 4);
  } else {
    copy1<<<blocks_for(size, threads), threads, 0, stream>>>(static_cast<float*>(out), static_cast<const float*>(base), size);
  }
  float* o = static_cast<float*>(out);
  switch (shape[2]) {
    case kSet: launch_way<kSet>(o, places, values, count, size, threads, stream); break;
    case kSum: launch_way<kSum>(o, places, values, count, size, threads, stream); break;
    case kProd: launch_way<kProd>(o, places, values, count, size, threads, stream); break;
    case kMax: launch_way<kMax>(o, places, values, count, size, threads, stream); break;
    default: launch_way<kMin>(o, places, values, count, size, threads, stream); break;
  }
  return static_cast<int>(cudaGetLastError());
}
