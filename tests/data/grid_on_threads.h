// What a CUDA program whose blocks wait for each other needs to run as threads of the host: all of its blocks at a time,
// each with its shared memory, and the shuffles of a warp.
#pragma once
#include <math.h>

#include <barrier>
#include <cstdint>
#include <cstring>
#include <deque>
#include <thread>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct dim3 {
  int x;
  explicit dim3(int x) : x(x) {}
};
struct alignas(16) float4 {
  float x, y, z, w;
};
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
template <typename T>
T __ldcg(const T* p) { return *p; }
template <typename T>
T __ldg(const T* p) { return *p; }

struct Place {
  int x;
};
struct Warp {
  std::barrier<> all{32};
  float said[32];
};
struct Block {
  std::barrier<> all;
  std::vector<float4> memory;
  std::deque<Warp> warps;
  Block(int threads, size_t bytes) : all(threads), memory(bytes / 16 + 1), warps(threads / 32) {}
};
static thread_local Place threadIdx, blockIdx;
static thread_local Block* block;

static void __syncthreads() { block->all.arrive_and_wait(); }
static float __shfl_sync(unsigned, float x, int from) {
  Warp& warp = block->warps[threadIdx.x / 32];
  warp.said[threadIdx.x % 32] = x;
  warp.all.arrive_and_wait();
  const float found = warp.said[from];
  warp.all.arrive_and_wait();
  return found;
}
static float __shfl_xor_sync(unsigned mask, float x, int apart) { return __shfl_sync(mask, x, (threadIdx.x % 32) ^ apart); }
static void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static unsigned atomicAdd(unsigned* at, unsigned more) { return __atomic_fetch_add(at, more, __ATOMIC_SEQ_CST); }
static unsigned acquired(const unsigned* at) {
  std::this_thread::yield();
  return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}

using cudaStream_t = void*;
enum cudaError_t { cudaSuccess, cudaErrorInvalidConfiguration = 9 };
enum { cudaDevAttrMultiProcessorCount, cudaDevAttrMaxSharedMemoryPerBlockOptin, cudaFuncAttributeMaxDynamicSharedMemorySize };
extern "C" int processors_of_the_device, shared_bytes_of_a_block;
int processors_of_the_device = 1, shared_bytes_of_a_block = 0;
static void cudaGetDevice(int* device) { *device = 0; }
static void cudaDeviceGetAttribute(int* value, int which, int) {
  *value = which == cudaDevAttrMultiProcessorCount ? processors_of_the_device : shared_bytes_of_a_block;
}
template <typename Kernel>
cudaError_t cudaFuncSetAttribute(Kernel, int, int) { return cudaSuccess; }
static cudaError_t cudaMemsetAsync(void* at, int value, size_t bytes, cudaStream_t) {
  memset(at, value, bytes);
  return cudaSuccess;
}
template <typename Argument>
cudaError_t cudaLaunchCooperativeKernel(void (*kernel)(Argument), dim3 grid, dim3 threads, void** arguments, size_t bytes, cudaStream_t) {
  if (grid.x > processors_of_the_device) return static_cast<cudaError_t>(720);
  std::deque<Block> blocks;
  std::vector<std::thread> team;
  for (int index = 0; index < grid.x; ++index) {
    Block& one = blocks.emplace_back(threads.x, bytes);
    for (int thread = 0; thread < threads.x; ++thread)
      team.emplace_back([=, &one] {
        threadIdx.x = thread;
        blockIdx.x = index;
        block = &one;
        kernel(*static_cast<Argument*>(arguments[0]));
      });
  }
  for (std::thread& one : team) one.join();
  return cudaSuccess;
}
// One block after the other, and its threads one after the other: for kernels whose threads don't wait.
template <typename Argument>
cudaError_t cudaLaunchKernel(void (*kernel)(Argument), dim3 grid, dim3 threads, void** arguments, size_t, cudaStream_t) {
  for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x)
    for (threadIdx.x = 0; threadIdx.x < threads.x; ++threadIdx.x) kernel(*static_cast<Argument*>(arguments[0]));
  return cudaSuccess;
}
static float f_sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
static float f_tanh(float x) { return tanhf(x); }
static float f_relu(float x) { return x < 0.0f ? 0.0f : x; }
