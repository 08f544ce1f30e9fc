// out = base [outer, size, inner], then each slice of values [outer, picks, inner] combined with the slice of out that its
// index says. Either the places of each slice are linked first, and the threads that write a slice of out read those that
// belong to it, so that memory is read and written once; or base is copied, and atomic operations put the slices there.
#include <assert.h>

#include "combine.cuh"

namespace {

template <int WIDTH>
struct alignas(sizeof(float) * WIDTH) Several {
  float v[WIDTH];
};

struct Slices {
  float* out;
  const float *base, *values;
  const void* index;
  // Of size and picks: the first pick of each slice, and after each pick the next one; -1 where there is none.
  int *head, *next;
  long long step;
  int rows, size, inner, picks, wide;
};

// Where a pick's slice belongs.
__device__ __forceinline__ int place_of(const Slices& s, int pick) {
  const long long at = pick * s.step;
  const long long given = s.wide ? static_cast<const long long*>(s.index)[at] : static_cast<const int*>(s.index)[at];
  const long long place = given < 0 ? given + s.size : given;
  assert(place >= 0 && place < s.size && "the index is in range");
  return static_cast<int>(place);
}

__global__ void link(Slices s) {
  const int pick = blockIdx.x * blockDim.x + threadIdx.x;
  if (pick >= s.picks) return;
  s.next[pick] = atomicExch(s.head + place_of(s, pick), pick);
}

// A line of threads for each slice of out.
template <int WAY, int WIDTH>
__global__ void gather(Slices s) {
  const int row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= s.rows) return;
  const int groups = s.inner / WIDTH, first = s.head[row % s.size];
  const auto* base = reinterpret_cast<const Several<WIDTH>*>(s.base) + static_cast<long long>(row) * groups;
  auto* out = reinterpret_cast<Several<WIDTH>*>(s.out) + static_cast<long long>(row) * groups;
  const auto* values = reinterpret_cast<const Several<WIDTH>*>(s.values) + static_cast<long long>(row / s.size) * s.picks * groups;
  if (first < 0) {
#pragma unroll 4
    for (int i = threadIdx.x; i < groups; i += blockDim.x) out[i] = base[i];
    return;
  }
  for (int i = threadIdx.x; i < groups; i += blockDim.x) {
    Several<WIDTH> there = base[i];
    for (int pick = first; pick >= 0; pick = s.next[pick]) {
      const Several<WIDTH> value = values[static_cast<long long>(pick) * groups + i];
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) there.v[k] = combined<WAY>(there.v[k], value.v[k]);
    }
    out[i] = there;
  }
}

// A line of threads for each slice of values; rows: of these.
template <int WAY, int WIDTH>
__global__ void scatter(Slices s) {
  const int row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= s.rows) return;
  const int groups = s.inner / WIDTH, place = place_of(s, row % s.picks);
  const auto* values = reinterpret_cast<const Several<WIDTH>*>(s.values) + static_cast<long long>(row) * groups;
  float* out = s.out + (static_cast<long long>(row / s.picks) * s.size + place) * s.inner;
#pragma unroll 4
  for (int i = threadIdx.x; i < groups; i += blockDim.x) {
    const Several<WIDTH> value = values[i];
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) put<WAY>(out + static_cast<long long>(i) * WIDTH + k, value.v[k]);
  }
}

// As many threads in a line as a slice has groups, at most all.
dim3 lines_of(int groups, int threads) {
  int line = 1;
  while (line < groups && line < threads) line *= 2;
  return dim3(line, threads / line);
}

template <int WAY, int WIDTH>
int run(Slices s, long long outer, bool linked, int threads, cudaStream_t stream) {
  const dim3 block = lines_of(s.inner / WIDTH, threads);
  cudaError_t status = cudaSuccess;
  s.rows = static_cast<int>(outer * (linked ? s.size : s.picks));
  const unsigned blocks = (s.rows + block.y - 1) / block.y;
  if (linked) {
    status = cudaMemsetAsync(s.head, 0xff, sizeof(int) * static_cast<size_t>(s.size), stream);
    if (status != cudaSuccess) return static_cast<int>(status);
    link<<<(s.picks + 255) / 256, 256, 0, stream>>>(s);
    gather<WAY, WIDTH><<<blocks, block, 0, stream>>>(s);
  } else {
    const size_t bytes = sizeof(float) * static_cast<size_t>(outer) * s.size * s.inner;
    status = cudaMemcpyAsync(s.out, s.base, bytes, cudaMemcpyDeviceToDevice, stream);
    if (status != cudaSuccess) return static_cast<int>(status);
    scatter<WAY, WIDTH><<<blocks, block, 0, stream>>>(s);
  }
  return static_cast<int>(cudaGetLastError());
}

template <int WAY>
int run_way(const Slices& s, long long outer, bool linked, int threads, cudaStream_t stream) {
  const size_t bits = reinterpret_cast<size_t>(s.out) | reinterpret_cast<size_t>(s.base) | reinterpret_cast<size_t>(s.values);
  if (s.inner % 4 == 0 && bits % 16 == 0) return run<WAY, 4>(s, outer, linked, threads, stream);
  return run<WAY, 1>(s, outer, linked, threads, stream);
}

}  // namespace

// shape: outer, size, inner, picks, way, whether the index has 64 bits, and how far apart its numbers lie. links: room for
// size + picks numbers. config: linked with 256 threads a block or 128, atomic with 256 or 512.
extern "C" int launch_scatter_slices(void* out, const void* base, const void* index, const void* values, void* links,
                                     const long long* shape, int config, cudaStream_t stream) {
  static const int kThreads[] = {256, 128, 256, 512};
  int* head = static_cast<int*>(links);
  const Slices s = {static_cast<float*>(out), static_cast<const float*>(base), static_cast<const float*>(values), index, head,
                    head + shape[1], shape[6], 0, static_cast<int>(shape[1]), static_cast<int>(shape[2]),
                    static_cast<int>(shape[3]), static_cast<int>(shape[5])};
  const bool linked = config < 2;
  switch (shape[4]) {
    case kSet: return run_way<kSet>(s, shape[0], linked, kThreads[config], stream);
    case kSum: return run_way<kSum>(s, shape[0], linked, kThreads[config], stream);
    case kProd: return run_way<kProd>(s, shape[0], linked, kThreads[config], stream);
    case kMax: return run_way<kMax>(s, shape[0], linked, kThreads[config], stream);
    default: return run_way<kMin>(s, shape[0], linked, kThreads[config], stream);
  }
}
