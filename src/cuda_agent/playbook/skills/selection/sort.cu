// Each row sorted whole, with the places of its numbers: merge sort in shared memory, a block a row.
//
// Numbers become unsigned ones of the same order. A thread sorts EACH neighbours in its registers; then runs are merged in
// pairs, all threads of a pair at once: each finds by bisection where its EACH results begin in both runs, and merges these
// (Green, McColl and Bader 2012, "GPU merge path"). Equal numbers stay in their order, so places needn't be compared.
#include <cuda_runtime.h>
#include <stdint.h>

namespace {

constexpr int MOST_THREADS = 1024;

// Larger numbers have larger keys, NaN the largest, both zeros the same.
__device__ __forceinline__ uint32_t key_of(float x) {
  const uint32_t given = __float_as_uint(x), bits = given << 1 ? given : 0;
  return x != x ? 0xffffffffu : (bits & 0x80000000u) ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ uint64_t key_of(long long x) { return static_cast<uint64_t>(x) ^ 0x8000000000000000ull; }

// One element in 32 is left out, so that threads whose elements lie 8, 16 or 32 apart don't meet in a bank.
__device__ __forceinline__ int spaced(int i) { return i + (i >> 5); }

template <typename T, typename Key, int EACH>
__global__ void __launch_bounds__(MOST_THREADS)
    sort_rows(T* __restrict__ values, long long* __restrict__ places, const T* __restrict__ x, int size, long long stride,
              bool descending) {
  extern __shared__ uint64_t memory[];
  const int threads = blockDim.x, thread = threadIdx.x, count = threads * EACH;
  Key* keys = reinterpret_cast<Key*>(memory);
  uint16_t* from = reinterpret_cast<uint16_t*>(keys + spaced(count));
  const long long row = blockIdx.x;
  x += row * stride;

  for (int i = thread; i < count; i += threads) {
    Key key = ~Key(0);
    if (i < size) key = descending ? ~key_of(x[i]) : key_of(x[i]);
    keys[spaced(i)] = key;
  }
  __syncthreads();
  const int mine = thread * EACH;
  Key key[EACH];
  uint32_t place[EACH];
#pragma unroll
  for (int e = 0; e < EACH; ++e) {
    key[e] = keys[spaced(mine + e)];
    place[e] = mine + e;
  }
  // Neighbours change places only where the first is larger.
#pragma unroll
  for (int turn = 0; turn < EACH; ++turn) {
#pragma unroll
    for (int e = turn & 1; e + 1 < EACH; e += 2) {
      const bool swap = key[e] > key[e + 1];
      const Key low = swap ? key[e + 1] : key[e], high = swap ? key[e] : key[e + 1];
      const uint32_t low_place = swap ? place[e + 1] : place[e], high_place = swap ? place[e] : place[e + 1];
      key[e] = low;
      key[e + 1] = high;
      place[e] = low_place;
      place[e + 1] = high_place;
    }
  }

  for (int length = EACH;; length *= 2) {
    __syncthreads();
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
      keys[spaced(mine + e)] = key[e];
      from[spaced(mine + e)] = static_cast<uint16_t>(place[e]);
    }
    __syncthreads();
    if (length == count) break;
    const int first = mine & ~(2 * length - 1), second = first + length, done = mine - first;
    int low = done > length ? done - length : 0, high = done < length ? done : length;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (keys[spaced(first + middle)] <= keys[spaced(second + done - 1 - middle)]) low = middle + 1;
      else high = middle;
    }
    int a = first + low, b = second + done - low;
    Key key_a = a < second ? keys[spaced(a)] : Key(0), key_b = b < second + length ? keys[spaced(b)] : Key(0);
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
      const bool of_a = b >= second + length || (a < second && key_a <= key_b);
      key[e] = of_a ? key_a : key_b;
      place[e] = from[spaced(of_a ? a : b)];
      if (of_a) {
        ++a;
        if (a < second) key_a = keys[spaced(a)];
      } else {
        ++b;
        if (b < second + length) key_b = keys[spaced(b)];
      }
    }
  }

  for (int i = thread; i < size; i += threads) {
    const int at = from[spaced(i)];
    if (values) values[row * size + i] = x[at];
    if (places) places[row * size + i] = at;
  }
}

template <typename T, typename Key, int EACH>
int run(void* values, long long* places, const void* x, const long long* s, cudaStream_t stream) {
  int threads = 32;
  while (threads * static_cast<long long>(EACH) < s[1]) threads *= 2;
  if (threads > MOST_THREADS) return -1;
  const int spaced = threads * EACH + threads * EACH / 32, bytes = spaced * static_cast<int>(sizeof(Key) + 2);
  const auto kernel = sort_rows<T, Key, EACH>;
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (status != cudaSuccess) return static_cast<int>(status);
  kernel<<<static_cast<unsigned>(s[0]), threads, bytes, stream>>>(static_cast<T*>(values), places, static_cast<const T*>(x),
                                                                  static_cast<int>(s[1]), s[2], s[3] != 0);
  return static_cast<int>(cudaGetLastError());
}

template <typename T, typename Key>
int run(void* values, long long* places, const void* x, const long long* s, int config, cudaStream_t stream) {
  if (config < 0 || config > 1) return -1;
  const int status = config == 0 ? run<T, Key, 8>(values, places, x, s, stream) : -1;
  return status == -1 ? run<T, Key, 16>(values, places, x, s, stream) : status;
}

}  // namespace

// shape: rows, their size (at most 16,384; of float32 32,768) and the elements from one to the next, whether the largest come
// first, and whether x is int64 (else float32). values or places may be null. config: 8 (0) or 16 (1) elements a thread.
// Returns a CUDA error, −1 for a setting or a size that doesn't exist.
extern "C" int launch_sort(void* values, void* places, const void* x, const long long* shape, int config, cudaStream_t stream) {
  long long* p = static_cast<long long*>(places);
  if (shape[4] != 0) return run<long long, uint64_t>(values, p, x, shape, config, stream);
  const int status = run<float, uint32_t>(values, p, x, shape, config, stream);
  return status == -1 && config == 0 ? run<float, uint32_t, 32>(values, p, x, shape, stream) : status;
}
