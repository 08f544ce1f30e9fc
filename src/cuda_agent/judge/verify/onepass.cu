// A block of threads for each block of elements: `measure` of a whole output.
#include <cuda_runtime.h>

#include "onepass.h"

namespace {

using namespace onepass;
constexpr int kThreads = 256, kWarps = kThreads / 32;

__device__ Sums of_warp(Sums mine) {
    for (int distance = 16; distance > 0; distance /= 2) {
        Sums other;
        for (int i = 0; i < kNumbers; ++i) other.numbers[i] = __shfl_down_sync(~0u, mine.numbers[i], distance);
        mine.join(other);
    }
    return mine;
}

template <class T>
__global__ void __launch_bounds__(kThreads) measure_blocks(
    const T* candidate, const T* eager, const T* policy, const double* oracle, long long count, Bounds bounds,
    long long blocks, double* out) {
    const long long begin = blockIdx.x * static_cast<long long>(kBlock);
    const long long end = begin + kBlock < count ? begin + kBlock : count;
    Sums mine;
    for (long long i = begin + threadIdx.x; i < end; i += kThreads)
        mine.add(candidate[i], eager[i], policy[i], oracle[i], bounds);
    mine = of_warp(mine);
    __shared__ Sums warps[kWarps];
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = mine;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int warp = 1; warp < kWarps; ++warp) mine.join(warps[warp]);
    for (int i = 0; i < kNumbers; ++i) out[i * blocks + blockIdx.x] = mine.numbers[i];
}

template <class T>
int launch(const void* candidate, const void* eager, const void* policy, const double* oracle, long long count,
           const Bounds& bounds, double* out, cudaStream_t stream) {
    const long long blocks = (count + kBlock - 1) / kBlock;
    measure_blocks<T><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
        static_cast<const T*>(candidate), static_cast<const T*>(eager), static_cast<const T*>(policy), oracle, count,
        bounds, blocks, out);
    return static_cast<int>(cudaGetLastError());
}

}  // namespace

// `out`: kNumbers rows of as many numbers as there are blocks. Returns CUDA's error, 0 for none, -1 for another type.
extern "C" __attribute__((visibility("default"))) int onepass_measure(
    int type, const void* candidate, const void* eager, const void* policy, const double* oracle, long long count,
    double atol, double rtol, double least, double* out, void* stream) {
    const Bounds bounds{atol, rtol, least};
    const auto on = static_cast<cudaStream_t>(stream);
    switch (type) {
        case 0: return launch<float>(candidate, eager, policy, oracle, count, bounds, out, on);
        case 1: return launch<double>(candidate, eager, policy, oracle, count, bounds, out, on);
        case 2: return launch<Half>(candidate, eager, policy, oracle, count, bounds, out, on);
        case 3: return launch<Bfloat>(candidate, eager, policy, oracle, count, bounds, out, on);
    }
    return -1;
}
