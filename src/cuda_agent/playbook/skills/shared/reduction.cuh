// Reductions over the threads of a row. A state is a plain struct whose size is a multiple of four bytes, with
// `merge(State&, const State&)`; a number is reduced with one of the functors below.
#pragma once
#include "elementwise.cuh"

struct Plus {
  template <typename T>
  __device__ __forceinline__ T operator()(T x, T y) const { return x + y; }
};
struct Times {
  template <typename T>
  __device__ __forceinline__ T operator()(T x, T y) const { return x * y; }
};
struct Maximum {
  template <typename T>
  __device__ __forceinline__ T operator()(T x, T y) const { return f_maximum(x, y); }
};
struct Minimum {
  template <typename T>
  __device__ __forceinline__ T operator()(T x, T y) const { return f_minimum(x, y); }
};
struct Or {
  __device__ __forceinline__ bool operator()(bool x, bool y) const { return x || y; }
};
struct And {
  __device__ __forceinline__ bool operator()(bool x, bool y) const { return x && y; }
};

// The larger (smaller) of two numbers and its place; of equal ones the first place. NaN is before all others. Without
// branches, which the threads of a warp would take one after the other.
template <typename T, typename Place>
__device__ __forceinline__ void take_max(T& best, Place& at, T x, Place place) {
  const bool stays = best != best, better = !(x <= best) & !stays, same = (x == best) | ((x != x) & stays);
  at = better | (same & (place < at)) ? place : at;
  best = better ? x : best;
}
template <typename T, typename Place>
__device__ __forceinline__ void take_min(T& best, Place& at, T x, Place place) {
  const bool stays = best != best, better = !(x >= best) & !stays, same = (x == best) | ((x != x) & stays);
  at = better | (same & (place < at)) ? place : at;
  best = better ? x : best;
}
// The sum (…) over LANES consecutive threads, in all of them. LANES up to 32 divides a warp; above, it is a multiple of
// 32, and a block may hold several such groups.
template <int LANES, typename Op, typename T>
__device__ __forceinline__ T reduce_lanes(T x, T identity, Op op) {
#pragma unroll
  for (int step = (LANES < 32 ? LANES : 32) / 2; step > 0; step /= 2) x = op(x, __shfl_xor_sync(0xffffffffu, x, step));
  if (LANES > 32) {
    constexpr int WARPS = LANES > 32 ? LANES / 32 : 1, MOST_WARPS = 32;
    __shared__ T parts[MOST_WARPS];
    const int warp = threadIdx.x / 32, at = threadIdx.x % 32;
    __syncthreads();
    if (at == 0) parts[warp] = x;
    __syncthreads();
    x = at < WARPS ? parts[warp / WARPS * WARPS + at] : identity;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x = op(x, __shfl_xor_sync(0xffffffffu, x, step));
  }
  return x;
}

// What cooperative groups do for a cluster, without their header, which takes a second of every compilation.
__device__ __forceinline__ void sync_cluster() {
  asm volatile("barrier.cluster.arrive;" ::: "memory");
  asm volatile("barrier.cluster.wait;" ::: "memory");
}
// A shared variable of this block, as block `rank` of the cluster has it.
template <typename T>
__device__ __forceinline__ const T* of_block(const T* mine, int rank) {
  const T* theirs;
  asm("mapa.u64 %0, %1, %2;" : "=l"(theirs) : "l"(mine), "r"(rank));
  return theirs;
}

// The same over a row that CLUSTER blocks share, through their shared memories.
template <int LANES, int CLUSTER, typename Op, typename T>
__device__ __forceinline__ T reduce_row(T x, T identity, Op op) {
  x = reduce_lanes<LANES>(x, identity, op);
  if constexpr (CLUSTER > 1) {
    __shared__ T mine;
    if (threadIdx.x == 0) mine = x;
    sync_cluster();
    x = identity;
#pragma unroll
    for (int rank = 0; rank < CLUSTER; ++rank) x = op(x, *of_block(&mine, rank));
    sync_cluster();
  }
  return x;
}

template <int CLUSTER, typename... Parameters, typename... Arguments>
void launch_clusters(void (*kernel)(Parameters...), unsigned blocks, unsigned threads, cudaStream_t stream, Arguments... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.stream = stream;
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = CLUSTER;
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  config.attrs = &attribute;
  config.numAttrs = CLUSTER > 1 ? 1 : 0;
  cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

template <typename State>
__device__ __forceinline__ State shuffled(const State& x, int step) {
  static_assert(sizeof(State) % 4 == 0, "a state is made of 32-bit words");
  State y;
  const unsigned* from = reinterpret_cast<const unsigned*>(&x);
  unsigned* to = reinterpret_cast<unsigned*>(&y);
#pragma unroll
  for (int k = 0; k < static_cast<int>(sizeof(State) / 4); ++k) to[k] = __shfl_xor_sync(0xffffffffu, from[k], step);
  return y;
}

// All threads of the block merged into every one of them. THREADS is 32 times a power of two.
template <int THREADS, typename State>
__device__ __forceinline__ State merge_block(State x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) merge(x, shuffled(x, step));
  constexpr int WARPS = THREADS / 32;
  if (WARPS > 1) {
    __shared__ __align__(16) unsigned char raw[sizeof(State) * WARPS];
    State* parts = reinterpret_cast<State*>(raw);
    const int warp = threadIdx.x / 32, at = threadIdx.x % 32;
    __syncthreads();
    if (at == 0) parts[warp] = x;
    __syncthreads();
    x = parts[at % WARPS];
#pragma unroll
    for (int step = WARPS / 2; step > 0; step /= 2) merge(x, shuffled(x, step));
  }
  return x;
}
