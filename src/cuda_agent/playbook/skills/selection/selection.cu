// The largest or smallest k of each row with their places, or the k-th alone: radix selection, a block a row.
//
// Floats become unsigned numbers of the same order. Three counts of eleven, eleven and ten bits, the first ones first,
// find the k-th number. Where all k are wanted, what lies above it, and as much of what equals it as is needed, is gathered
// and sorted. The row is read once into shared memory where it fits, and counted there. Of short rows a few are taken one
// after the other, by a warp a row.
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>

namespace {

constexpr int BINS = 2048;
// Of shared memory, for a row that is held.
constexpr int MOST_BYTES = 200 << 10;

struct Pick {
  uint32_t key;
  int place;
};

// Larger numbers have larger keys, NaN the largest, both zeros the same; for the smallest all keys are turned round.
__device__ __forceinline__ uint32_t key_of(float x, bool largest) {
  const uint32_t given = __float_as_uint(x), bits = given << 1 ? given : 0;
  const uint32_t key = x != x ? 0xffffffffu : (bits & 0x80000000u) ? ~bits : bits | 0x80000000u;
  return largest ? key : ~key;
}

__device__ __forceinline__ bool before(const Pick& a, const Pick& b) {
  return a.key > b.key || (a.key == b.key && a.place < b.place);
}

template <int THREADS, bool HELD>
__global__ void __launch_bounds__(THREADS)
    select_rows(float* __restrict__ values, long long* __restrict__ places, const float* __restrict__ x, int size,
                long long stride, int k, int padded, bool largest, bool only_last, bool nan_wins) {
  extern __shared__ uint32_t memory[];
  uint32_t* counts = memory;
  uint32_t* sums = counts + BINS;
  Pick* picks = reinterpret_cast<Pick*>(sums + THREADS);
  uint32_t* held = reinterpret_cast<uint32_t*>(picks + padded);
  __shared__ uint32_t bin, left, above, equal;
  // Of NaN, or of the k-th number.
  __shared__ int first;

  const long long row = blockIdx.x;
  const int thread = threadIdx.x;
  x += row * stride;
  if (thread == 0) {
    first = size;
    above = equal = 0;
    left = k;
  }
  __syncthreads();
  for (int i = thread; i < size; i += THREADS) {
    const float item = x[i];
    if (HELD) held[i] = key_of(item, largest);
    if (nan_wins && item != item) atomicMin(&first, i);
  }
  __syncthreads();
  if (nan_wins && first < size) {
    if (thread == 0) {
      values[row] = x[first];
      places[row] = first;
    }
    return;
  }

  uint32_t prefix = 0, mask = 0;
  for (int shift = 21; shift >= 0; shift = shift == 21 ? 10 : shift - 10) {
    const uint32_t bins = shift == 0 ? 1024 : BINS;
    for (int i = thread; i < BINS; i += THREADS) counts[i] = 0;
    __syncthreads();
    for (int i = thread; i < size; i += THREADS) {
      const uint32_t key = HELD ? held[i] : key_of(x[i], largest);
      if ((key & mask) == prefix) atomicAdd(&counts[(key >> shift) & (bins - 1)], 1u);
    }
    __syncthreads();
    // Every thread has some bins, the first thread the highest; sums run over the threads before and itself.
    constexpr int EACH = BINS / THREADS;
    uint32_t own = 0;
    for (int j = 0; j < EACH; ++j) own += counts[BINS - 1 - (thread * EACH + j)];
    sums[thread] = own;
    __syncthreads();
    for (int reach = 1; reach < THREADS; reach *= 2) {
      const uint32_t more = thread >= reach ? sums[thread - reach] : 0;
      __syncthreads();
      sums[thread] += more;
      __syncthreads();
    }
    const uint32_t wanted = left;
    uint32_t passed = sums[thread] - own;
    __syncthreads();
    if (passed < wanted && wanted <= passed + own) {
      for (int j = 0; j < EACH; ++j) {
        const int at = BINS - 1 - (thread * EACH + j);
        if (passed < wanted && wanted <= passed + counts[at]) {
          bin = at;
          left = wanted - passed;
        }
        passed += counts[at];
      }
    }
    __syncthreads();
    prefix |= bin << shift;
    mask |= (bins - 1) << shift;
  }

  if (only_last) {
    for (int i = thread; i < size; i += THREADS) {
      const uint32_t key = HELD ? held[i] : key_of(x[i], largest);
      if (key == prefix) atomicMin(&first, i);
    }
    __syncthreads();
    if (thread == 0) {
      values[row] = x[first];
      places[row] = first;
    }
    return;
  }

  const uint32_t wanted = left;
  for (int i = thread; i < padded; i += THREADS) {
    picks[i] = {0, INT32_MAX};
  }
  __syncthreads();
  for (int i = thread; i < size; i += THREADS) {
    const uint32_t key = HELD ? held[i] : key_of(x[i], largest);
    if (key > prefix) picks[atomicAdd(&above, 1u)] = {key, i};
    if (key == prefix) {
      const uint32_t at = atomicAdd(&equal, 1u);
      if (at < wanted) picks[k - wanted + at] = {key, i};
    }
  }
  __syncthreads();

  // Bitonic: what comes first, first.
  for (int block = 2; block <= padded; block *= 2) {
    for (int distance = block / 2; distance > 0; distance /= 2) {
      for (int pair = thread; pair < padded / 2; pair += THREADS) {
        const int i = 2 * pair - (pair & (distance - 1)), other = i + distance;
        const Pick a = picks[i], b = picks[other];
        if (before(b, a) == ((i & block) == 0)) {
          picks[i] = b;
          picks[other] = a;
        }
      }
      __syncthreads();
    }
  }

  for (int i = thread; i < k; i += THREADS) {
    const int place = picks[i].place;
    values[row * k + i] = x[place];
    places[row * k + i] = place;
  }
}

constexpr int WARPS = 8, MOST_TAKEN = 32, MOST_EACH = 16;

// At most MOST_TAKEN of a row of at most 32 · EACH, each lane with its part in registers.
template <int EACH>
__global__ void __launch_bounds__(32 * WARPS)
    take_few(float* __restrict__ values, long long* __restrict__ places, const float* __restrict__ x, long long rows, int size,
             long long stride, int k, bool largest, bool only_last, bool nan_wins) {
  constexpr unsigned ALL = 0xffffffffu;
  const long long row = static_cast<long long>(blockIdx.x) * WARPS + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (row >= rows) return;
  x += row * stride;
  uint32_t keys[EACH];
  int first = size;
#pragma unroll
  for (int j = 0; j < EACH; ++j) {
    const int at = lane + 32 * j;
    const float item = at < size ? x[at] : 0.0f;
    keys[j] = key_of(item, largest);
    if (item != item && first == size) first = at;
  }
  if (nan_wins) {
    first = __reduce_min_sync(ALL, first);
    if (first < size) {
      if (lane == 0) {
        values[row] = x[first];
        places[row] = first;
      }
      return;
    }
  }

  uint32_t taken = 0;
  int mine = 0;
  for (int i = 0; i < k; ++i) {
    uint32_t best = 0;
    int place = INT32_MAX;
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
      const int at = lane + 32 * j;
      const bool there = (at < size) & !(taken >> j & 1u);
      if (there & ((place == INT32_MAX) | (keys[j] > best))) {
        best = keys[j];
        place = at;
      }
    }
    const uint32_t top = __reduce_max_sync(ALL, best);
    place = __reduce_min_sync(ALL, best == top ? place : INT32_MAX);
    if (place % 32 == lane) taken |= 1u << place / 32;
    if (i == lane) mine = place;
  }
  if (only_last ? lane == k - 1 : lane < k) {
    const long long to = only_last ? row : row * k + lane;
    values[to] = x[mine];
    places[to] = mine;
  }
}

template <int EACH>
int run_few(float* values, long long* places, const float* x, const long long* s, cudaStream_t stream) {
  const int size = static_cast<int>(s[1]);
  if constexpr (EACH < MOST_EACH) {
    if (size > 32 * EACH) return run_few<2 * EACH>(values, places, x, s, stream);
  }
  take_few<EACH><<<static_cast<unsigned>((s[0] + WARPS - 1) / WARPS), 32 * WARPS, 0, stream>>>(
      values, places, x, s[0], size, s[2], static_cast<int>(s[3]), s[4] != 0, s[5] != 0, s[6] != 0);
  return static_cast<int>(cudaGetLastError());
}

template <int THREADS>
int run(float* values, long long* places, const float* x, const long long* s, cudaStream_t stream) {
  const int size = static_cast<int>(s[1]), k = static_cast<int>(s[3]);
  int padded = 1;
  while (padded < k && s[5] == 0) padded *= 2;
  const int bytes = (BINS + THREADS) * 4 + padded * static_cast<int>(sizeof(Pick));
  const bool held = bytes + size * 4LL <= MOST_BYTES;
  const auto kernel = held ? select_rows<THREADS, true> : select_rows<THREADS, false>;
  const int whole = held ? bytes + size * 4 : bytes;
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, whole);
  if (status != cudaSuccess) return static_cast<int>(status);
  kernel<<<static_cast<unsigned>(s[0]), THREADS, whole, stream>>>(values, places, x, size, s[2], k, padded, s[4] != 0,
                                                                   s[5] != 0, s[6] != 0);
  return static_cast<int>(cudaGetLastError());
}

}  // namespace

// shape: rows, their size and the elements from one to the next, k, whether the largest are wanted, only the last of the
// k, and whether a row with NaN gives NaN. Returns a CUDA error, −1 for a setting that doesn't exist.
extern "C" int launch_selection(void* values, void* places, const void* x, const long long* shape, int config,
                                cudaStream_t stream) {
  float* v = static_cast<float*>(values);
  long long* p = static_cast<long long*>(places);
  const float* rows = static_cast<const float*>(x);
  if (config == 0 && shape[1] <= 32 * MOST_EACH && shape[3] <= MOST_TAKEN) return run_few<1>(v, p, rows, shape, stream);
  if (config == 0) return run<512>(v, p, rows, shape, stream);
  if (config == 1) return run<256>(v, p, rows, shape, stream);
  if (config == 2) return run<1024>(v, p, rows, shape, stream);
  if (config == 3) return run<128>(v, p, rows, shape, stream);
  return -1;
}
