// Scans over the threads of a row, with the functors of reduction.cuh and the one below.
#pragma once
#include "reduction.cuh"

struct LogSum {
  template <typename T>
  __device__ __forceinline__ T operator()(T x, T y) const {
    const T top = f_maximum(x, y), low = f_minimum(x, y);
    // Equal infinities, and -inf beside anything, would give NaN.
    return low == top || isinf(low) || isinf(top) ? (low == top && !isinf(top) ? top + T(0.6931471805599453) : top)
                                                  : top + f_log1p(f_exp(low - top));
  }
};

// What LANES consecutive threads hold before this one, in their order; `all` is what they hold together. LANES up to 32
// divides a warp; above, it is a multiple of 32, and a block may hold several such groups.
template <int LANES, typename Op, typename T>
__device__ __forceinline__ T scan_lanes(T x, T identity, Op op, T& all) {
  constexpr int WIDTH_ = LANES < 32 ? LANES : 32;
  const int at = threadIdx.x % WIDTH_;
#pragma unroll
  for (int step = 1; step < WIDTH_; step *= 2) {
    const T other = __shfl_up_sync(0xffffffffu, x, step, WIDTH_);
    if (at >= step) x = op(other, x);
  }
  T before = __shfl_up_sync(0xffffffffu, x, 1, WIDTH_);
  if (at == 0) before = identity;
  all = __shfl_sync(0xffffffffu, x, WIDTH_ - 1, WIDTH_);
  if constexpr (LANES > 32) {
    constexpr int WARPS = LANES / 32, MOST_WARPS = 32;
    __shared__ T parts[MOST_WARPS];
    const int warp = threadIdx.x / 32, first = warp / WARPS * WARPS;
    __syncthreads();
    if (at == 31) parts[warp] = x;
    __syncthreads();
    T sum = identity, mine = identity;
#pragma unroll
    for (int k = 0; k < WARPS; ++k) {
      if (first + k == warp) mine = sum;
      sum = op(sum, parts[first + k]);
    }
    before = op(mine, before);
    all = sum;
  }
  return before;
}
