// What a CUDA block of threads without warp intrinsics needs to run as threads of the host: one block at a time.
#pragma once
#include <math.h>

#include <barrier>
#include <cstdint>
#include <cstring>
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
static Index blockIdx;
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

template <typename Kernel>
void run_blocks(long long blocks, int threads, size_t shared_words, Kernel kernel) {
  std::vector<uint32_t> memory(shared_words);
  shared_memory = memory.data();
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
