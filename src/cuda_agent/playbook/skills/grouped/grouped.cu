// out[rows of group e] = a[rows of group e] · b[e]ᵀ for rows that lie group after group; ends[e] is the row behind group e.
//
// bfloat16 through the tensor cores (mma.sync), sums in float32. A block computes ROWS × COLUMNS of one group,
// whose operands cp.async brings into shared memory, STAGES - 1 steps of 64 along k ahead. The groups' sizes are known on
// the device only, so there are as many blocks as any sizes need, and each finds its group from `ends`; those that are left
// over end at once. Blocks of the same columns follow each other: those of a group read b[e] together, so memory gives it
// once. Rows behind the last group aren't written.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

namespace {

using bf16 = __nv_bfloat16;

constexpr int STEP = 64, PIECES = STEP / 8, STAGES = 3;

struct Shape {
  int rows, columns, depth, groups;
  long long lda, ldb, stride_b;
};

// The part of a group that block `at` of each column computes: false where there are fewer.
template <int ROWS>
__device__ bool find(const int* __restrict__ ends, int groups, int rows, int at, int& group, int& begin, int& end) {
  const int lane = threadIdx.x & 31;
  int before = 0;
  for (int base = 0; base < groups; base += 32) {
    const int mine = base + lane;
    const int stop = mine < groups ? min(ends[mine], rows) : 0;
    const int start = mine > 0 && mine < groups ? ends[mine - 1] : 0;
    const int tiles = stop > start ? (stop - start + ROWS - 1) / ROWS : 0;
    int sum = tiles;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += other;
    }
    const int first = before + sum - tiles;
    const unsigned found = __ballot_sync(~0u, at >= first && at < first + tiles);
    if (found) {
      const int from = __ffs(found) - 1;
      group = base + from;
      begin = __shfl_sync(~0u, start, from) + (at - __shfl_sync(~0u, first, from)) * ROWS;
      end = __shfl_sync(~0u, stop, from);
      return true;
    }
    before += __shfl_sync(~0u, sum, 31);
  }
  return false;
}

// 16 bytes to shared memory, zeros where there is nothing to read.
__device__ __forceinline__ void copy16(uint32_t to, const void* from, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(inside ? 16 : 0));
}

// Of a row of 64 numbers, the pieces of 16 bytes are exchanged, so that eight rows' loads meet in no bank.
__device__ __forceinline__ uint32_t place(int row, int piece) { return row * STEP * 2 + ((piece ^ (row & 7)) << 4); }

__device__ __forceinline__ void load_matrices(uint32_t (&to)[4], uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from));
}

// c[16 × 8] += a[16 × 16] · b[16 × 8]
__device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// COUNT rows of 64 numbers from column `at` on into one stage; rows from `known` on and columns behind `depth` are zeros.
template <int COUNT, int THREADS>
__device__ __forceinline__ void bring(uint32_t to, const bf16* from, long long ld, int known, int at, int depth) {
#pragma unroll
  for (int i = threadIdx.x; i < COUNT * PIECES; i += THREADS) {
    const int row = i / PIECES, piece = i % PIECES, column = at + piece * 8;
    const bool inside = row < known && column < depth;
    copy16(to + place(row, piece), inside ? from + row * ld + column : from, inside);
  }
}

// A warp computes HIGH × WIDE of the block's ROWS × COLUMNS.
template <int ROWS, int COLUMNS, int HIGH, int WIDE>
__global__ void __launch_bounds__(32 * (ROWS / HIGH) * (COLUMNS / WIDE))
    grouped(bf16* __restrict__ out, const bf16* __restrict__ a, const bf16* __restrict__ b, const int* __restrict__ ends, Shape s) {
  constexpr int THREADS = 32 * (ROWS / HIGH) * (COLUMNS / WIDE), DOWN = HIGH / 16, ACROSS = WIDE / 8;
  constexpr uint32_t A_BYTES = ROWS * STEP * 2, BYTES = A_BYTES + COLUMNS * STEP * 2;
  extern __shared__ uint4 memory[];
  int group, begin, end;
  if (!find<ROWS>(ends, s.groups, s.rows, blockIdx.x, group, begin, end)) return;
  const int first = blockIdx.y * COLUMNS;
  a += begin * s.lda;
  b += group * s.stride_b + first * s.ldb;
  const int rows = min(end - begin, ROWS), columns = min(s.columns - first, COLUMNS);
  const uint32_t base = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int row = warp / (COLUMNS / WIDE) * HIGH, column = warp % (COLUMNS / WIDE) * WIDE;

  const int steps = (s.depth + STEP - 1) / STEP;
  auto ahead = [&](int step) {
    if (step < steps) {
      const uint32_t to = base + step % STAGES * BYTES;
      bring<ROWS, THREADS>(to, a, s.lda, rows, step * STEP, s.depth);
      bring<COLUMNS, THREADS>(to + A_BYTES, b, s.ldb, columns, step * STEP, s.depth);
    }
    asm volatile("cp.async.commit_group;");
  };
  float sum[DOWN][ACROSS][4] = {};
#pragma unroll
  for (int step = 0; step < STAGES - 1; ++step) ahead(step);
  for (int step = 0; step < steps; ++step) {
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2));
    __syncthreads();
    ahead(step + STAGES - 1);
    const uint32_t at_a = base + step % STAGES * BYTES, at_b = at_a + A_BYTES;
#pragma unroll
    for (int k = 0; k < STEP / 16; ++k) {
      uint32_t left[DOWN][4], right[ACROSS / 2][4];
#pragma unroll
      for (int i = 0; i < DOWN; ++i) load_matrices(left[i], at_a + place(row + 16 * i + (lane & 15), 2 * k + (lane >> 4)));
#pragma unroll
      for (int j = 0; j < ACROSS / 2; ++j) {
        const int at = column + 16 * j + (lane >> 4) * 8 + (lane & 7);
        load_matrices(right[j], at_b + place(at, 2 * k + ((lane >> 3) & 1)));
      }
#pragma unroll
      for (int i = 0; i < DOWN; ++i) {
#pragma unroll
        for (int j = 0; j < ACROSS; ++j) multiply(sum[i][j], left[i], right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]);
      }
    }
  }

#pragma unroll
  for (int i = 0; i < DOWN; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = row + 16 * i + 8 * half + (lane >> 2);
      if (at >= rows) continue;
      bf16* to = out + static_cast<long long>(begin + at) * s.columns + first;
#pragma unroll
      for (int j = 0; j < ACROSS; ++j) {
        const int place = column + 8 * j + 2 * (lane & 3);
        const __nv_bfloat162 pair = __floats2bfloat162_rn(sum[i][j][2 * half], sum[i][j][2 * half + 1]);
        if (place < columns) *reinterpret_cast<__nv_bfloat162*>(to + place) = pair;
      }
    }
  }
}

template <int ROWS, int COLUMNS, int HIGH, int WIDE>
int launch(void* out, const void* a, const void* b, const void* ends, const Shape& s, cudaStream_t stream) {
  const auto kernel = grouped<ROWS, COLUMNS, HIGH, WIDE>;
  constexpr int bytes = STAGES * (ROWS + COLUMNS) * STEP * 2, threads = 32 * (ROWS / HIGH) * (COLUMNS / WIDE);
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (status != cudaSuccess) return static_cast<int>(status);
  // Each group has at most one part that isn't full.
  const dim3 grid(s.rows / ROWS + min(s.groups, s.rows), (s.columns + COLUMNS - 1) / COLUMNS);
  kernel<<<grid, threads, bytes, stream>>>(static_cast<bf16*>(out), static_cast<const bf16*>(a), static_cast<const bf16*>(b),
                                           static_cast<const int*>(ends), s);
  return static_cast<int>(cudaGetLastError());
}

}  // namespace

// numbers: rows, columns, depth, groups, then the elements between rows of a, between columns of b and between its groups,
// all multiples of 8.
extern "C" int launch_grouped(void* out, const void* a, const void* b, const void* ends, const long long* numbers, int config,
                              cudaStream_t stream) {
  const Shape s{static_cast<int>(numbers[0]), static_cast<int>(numbers[1]), static_cast<int>(numbers[2]),
                static_cast<int>(numbers[3]), numbers[4], numbers[5], numbers[6]};
  switch (config) {
    case 0: return launch<128, 128, 64, 32>(out, a, b, ends, s, stream);
    case 1: return launch<64, 128, 32, 32>(out, a, b, ends, s, stream);
    default: return launch<16, 128, 16, 32>(out, a, b, ends, s, stream);
  }
}
