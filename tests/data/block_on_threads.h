// What a CUDA block of threads needs to run as threads of the host, of warp intrinsics the reductions of integers: one block
// at a time.
#pragma once
#include <math.h>

#include <algorithm>
#include <barrier>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(threads)
#define __restrict__

struct Index {
  long long x;
};
static thread_local Index threadIdx;
static Index blockIdx, blockDim;
static std::barrier<>* everybody;
static uint32_t* shared_memory;

static void __syncthreads() { everybody->arrive_and_wait(); }
static uint32_t atomicAdd(uint32_t* at, uint32_t more) { return __atomic_fetch_add(at, more, __ATOMIC_SEQ_CST); }
static void atomicMin(int* at, int value) {
  int now = __atomic_load_n(at, __ATOMIC_SEQ_CST);
  while (value < now && !__atomic_compare_exchange_n(at, &now, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
  }
}
static uint32_t __float_as_uint(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

struct Warp {
  std::barrier<> all{32};
  int64_t given[32];
};
static std::vector<std::unique_ptr<Warp>> warps;

template <typename Pick>
static int64_t of_warp(int64_t mine, Pick pick) {
  Warp& warp = *warps[threadIdx.x / 32];
  warp.given[threadIdx.x % 32] = mine;
  warp.all.arrive_and_wait();
  const int64_t found = *pick(warp.given, warp.given + 32);
  warp.all.arrive_and_wait();
  return found;
}
static uint32_t __reduce_max_sync(unsigned, uint32_t mine) {
  return of_warp(mine, [](const int64_t* a, const int64_t* b) { return std::max_element(a, b); });
}
static int __reduce_min_sync(unsigned, int mine) {
  return of_warp(mine, [](const int64_t* a, const int64_t* b) { return std::min_element(a, b); });
}

template <typename Kernel>
void run_blocks(long long blocks, int threads, size_t shared_words, Kernel kernel) {
  std::vector<uint32_t> memory(shared_words);
  shared_memory = memory.data();
  blockDim.x = threads;
  warps.clear();
  for (int warp = 0; warp < (threads + 31) / 32; ++warp) warps.push_back(std::make_unique<Warp>());
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
    std::barrier<> all(threads);
    everybody = &all;
    std::vector<std::thread> team;
    for (int thread = 0; thread < threads; ++thread)
      team.emplace_back([=] {
        threadIdx.x = thread;
        kernel();
      });
    for (std::thread& one : team) one.join();
  }
}
