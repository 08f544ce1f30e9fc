// out = base, then each value at its place in out, combined with what is there. shape: elements of base, values, way.
#include <assert.h>

#include "combine.cuh"

namespace {

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

// A block a row: what was there comes into shared memory, the row's own numbers are put there, and the row leaves it whole.
// Without values, all are `value`.
template <int WAY, typename Index>
__global__ void scatter_rows(float* __restrict__ out, const float* __restrict__ base, const Index* __restrict__ places,
                             const float* __restrict__ values, float value, int size, int picks) {
  extern __shared__ float4 memory[];
  float* row = reinterpret_cast<float*>(memory);
  const long long at = blockIdx.x;
  out += at * size;
  base += at * size;
  places += at * picks;
  if (values) values += at * picks;
  const bool four = size % 4 == 0;
  if (four) {
    for (int i = threadIdx.x; i < size / 4; i += blockDim.x) memory[i] = reinterpret_cast<const float4*>(base)[i];
  } else {
    for (int i = threadIdx.x; i < size; i += blockDim.x) row[i] = base[i];
  }
  __syncthreads();
#pragma unroll 4
  for (int i = threadIdx.x; i < picks; i += blockDim.x) {
    const long long given = places[i], place = given < 0 ? given + size : given;
    const float one = values ? values[i] : value;
    assert(place >= 0 && place < size && "the index is in range");
    put<WAY>(row + place, one);
  }
  __syncthreads();
  if (four) {
    for (int i = threadIdx.x; i < size / 4; i += blockDim.x) reinterpret_cast<float4*>(out)[i] = memory[i];
  } else {
    for (int i = threadIdx.x; i < size; i += blockDim.x) out[i] = row[i];
  }
}

template <int WAY, typename Index>
int launch_rows(float* out, const float* base, const void* places, const float* values, float value, const long long* s,
                int threads, cudaStream_t stream) {
  const auto kernel = scatter_rows<WAY, Index>;
  const int size = static_cast<int>(s[1]), bytes = (size + 3) / 4 * 16;
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (status != cudaSuccess) return static_cast<int>(status);
  kernel<<<static_cast<unsigned>(s[0]), threads, bytes, stream>>>(out, base, static_cast<const Index*>(places), values, value,
                                                                  size, static_cast<int>(s[2]));
  return static_cast<int>(cudaGetLastError());
}

template <typename Index>
int launch_rows_of(float* out, const float* base, const void* places, const float* values, float value, const long long* s,
                   int threads, cudaStream_t stream) {
  switch (s[3]) {
    case kSet: return launch_rows<kSet, Index>(out, base, places, values, value, s, threads, stream);
    case kSum: return launch_rows<kSum, Index>(out, base, places, values, value, s, threads, stream);
    case kProd: return launch_rows<kProd, Index>(out, base, places, values, value, s, threads, stream);
    case kMax: return launch_rows<kMax, Index>(out, base, places, values, value, s, threads, stream);
    default: return launch_rows<kMin, Index>(out, base, places, values, value, s, threads, stream);
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

// Within rows: base and out [rows, size], places and values [rows, picks], values null where all are `value`. shape: rows,
// size (at most 51,200; of all rows aligned to 16 bytes where 4 divides it), picks, way, and whether places have 64 bits.
extern "C" int launch_scatter_rows(void* out, const void* base, const void* places, const void* values, float value,
                                   const long long* shape, int config, cudaStream_t stream) {
  static const int kThreads[] = {256, 512, 128};
  float* o = static_cast<float*>(out);
  const float *b = static_cast<const float*>(base), *v = static_cast<const float*>(values);
  return shape[4] != 0 ? launch_rows_of<long long>(o, b, places, v, value, shape, kThreads[config], stream)
                       : launch_rows_of<int>(o, b, places, v, value, shape, kThreads[config], stream);
}
