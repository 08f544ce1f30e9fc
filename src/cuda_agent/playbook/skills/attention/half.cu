// softmax(capped(q·kᵀ·scale) + mask)·v in one kernel, bfloat16 or float16 through the tensor cores (mma.sync), without the
// scores in memory; capped(x) = cap·tanh(x / cap) where there is a soft cap.
//
// Query heads that share keys lie together: row r of a block is row r / group of head r % group, so keys and values are
// read once for a group. ROW_WARPS · TILES · 16 rows belong to a block, which walks over the keys, KEYS at a time; cp.async
// brings them into shared memory one step ahead; with JOINED the last keys and values come from tensors of their own, so that
// those of a cache and of new tokens needn't be copied together. KEY_WARPS warps share the keys of a step, each with a softmax of its own,
// and put their results together at the end; so do the blocks of a row where keys are split (decoding: few rows, many keys).
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>

// Sizes of a head of q and k, and of v: multiples of 8.
#define HEAD 64
#define VALUE 64
#define ELEMENT __nv_bfloat16
#define JOINED 0
#define LAUNCH launch_attention_half

namespace {

constexpr float LOG2E = 1.4426950408889634f;
constexpr bool IS_BFLOAT16 = sizeof(ELEMENT) == sizeof(__nv_bfloat16) && __is_same(ELEMENT, __nv_bfloat16);
// With zeros behind them, and eight elements further from row to row, so that no two lanes of a load meet in a bank.
constexpr int WIDTH = (HEAD + 15) / 16 * 16, VALUE_WIDTH = (VALUE + 15) / 16 * 16;
constexpr int K_ROW = WIDTH + 8, V_ROW = VALUE_WIDTH + 8;

enum Mask { kNone, kElement, kFloat, kBoolean };

struct Geometry {
  long long inner, group, rows, keys;
  long long q_outer, q_inner, q_group, q_row, k_outer, k_inner, k_row, v_outer, v_inner, v_row;
  long long o_outer, o_inner, o_group, o_row, m_outer, m_inner, m_group, m_row, m_key;
  // Keys in the first tensor, and where the others lie.
  long long joint, kk_outer, kk_inner, kk_row, vv_outer, vv_inner, vv_row;
};

struct Work {
  Geometry g;
  ELEMENT* out;
  const ELEMENT *q, *k, *v, *kk, *vv;
  const void* mask;
  // Results of the splits of a row, [split][batch][row], and their largest score and sum.
  float *parts, *states;
  long long batch, chunk;
  float scale, cap;
  int mask_kind, causal;
};

__device__ __forceinline__ float power(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 - 2 / (1 + e^2x): an absolute error of 1e-7, which a cap of 100 keeps small beside a score's own.
__device__ __forceinline__ float tanh_of(float x) { return 1.0f - __fdividef(2.0f, 1.0f + power(2.0f * LOG2E * x)); }

__device__ __forceinline__ uint32_t packed(float x, float y) {
  uint32_t both;
  if (IS_BFLOAT16)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(y), "f"(x));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(y), "f"(x));
  return both;
}

// c[16 × 8] += a[16 × 16] · b[16 × 8]
__device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#define MULTIPLY(type)                                                                                                \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                                                 \
               ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                                  \
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                       \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
  if (IS_BFLOAT16)
    MULTIPLY("bf16");
  else
    MULTIPLY("f16");
#undef MULTIPLY
}

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Four 8 × 8 matrices of shared memory; lane 8·i + j names row j of matrix i.
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const ELEMENT* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(p)));
}

__device__ __forceinline__ void load_transposed(uint32_t (&r)[4], const ELEMENT* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(p)));
}

// 16 bytes to shared memory, zeros where there is nothing to read.
__device__ __forceinline__ void copy16(ELEMENT* to, const ELEMENT* from, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(inside ? 16 : 0));
}

// Rows of a tensor, `stride` apart; with JOINED those from `joint` on lie in another.
struct Rows {
  const ELEMENT *one, *other;
  long long stride, other_stride, joint;

  __device__ __forceinline__ const ELEMENT* at(long long row) const {
    return JOINED && row >= joint ? other + (row - joint) * other_stride : one + row * stride;
  }
};

template <int KEYS, int THREADS, int SIZE, int ROW>
__device__ __forceinline__ void bring(ELEMENT* to, const Rows& from, long long first, long long end) {
  constexpr int PIECES = (SIZE + 15) / 16 * 2;
#pragma unroll 4
  for (int i = threadIdx.x; i < KEYS * PIECES; i += THREADS) {
    const int row = i / PIECES, column = i % PIECES * 8;
    const bool inside = first + row < end && column < SIZE;
    copy16(to + row * ROW + column, inside ? from.at(first + row) + column : from.one, inside);
  }
}

__device__ __forceinline__ float masked(const Work& w, const void* mask, long long at) {
  if (w.mask_kind == kBoolean) return static_cast<const uint8_t*>(mask)[at] ? 0.0f : -INFINITY;
  if (w.mask_kind == kFloat) return static_cast<const float*>(mask)[at] * LOG2E;
  return static_cast<float>(static_cast<const ELEMENT*>(mask)[at]) * LOG2E;
}

template <int KEYS, int ROW_WARPS, int KEY_WARPS, int TILES>
__global__ void __launch_bounds__(32 * ROW_WARPS * KEY_WARPS) attention(Work w) {
  constexpr int BLOCK = ROW_WARPS * TILES * 16, THREADS = 32 * ROW_WARPS * KEY_WARPS;
  constexpr int OWN = KEYS / KEY_WARPS, COLUMNS = OWN / 8, RESULTS = VALUE_WIDTH / 8;
  extern __shared__ uint4 memory[];
  ELEMENT* q_shared = reinterpret_cast<ELEMENT*>(memory);
  ELEMENT* k_shared = q_shared + BLOCK * K_ROW;
  ELEMENT* v_shared = k_shared + 2 * KEYS * K_ROW;

  const Geometry& g = w.g;
  const long long total = g.rows * g.group, blocks = (total + BLOCK - 1) / BLOCK;
  // Causal: the blocks with most keys begin first. Otherwise those that share keys follow each other.
  const long long block = w.causal ? blocks - 1 - blockIdx.x / w.batch : blockIdx.x % blocks;
  const long long head = w.causal ? blockIdx.x % w.batch : blockIdx.x / blocks;
  const long long outer = head / g.inner, inner = head % g.inner;
  const Rows k = {w.k + outer * g.k_outer + inner * g.k_inner, w.kk + outer * g.kk_outer + inner * g.kk_inner, g.k_row, g.kk_row,
                  g.joint};
  const Rows v = {w.v + outer * g.v_outer + inner * g.v_inner, w.vv + outer * g.vv_outer + inner * g.vv_inner, g.v_row, g.vv_row,
                  g.joint};
  const long long start = block * BLOCK;
  const int group = static_cast<int>(g.group);

  long long end = g.keys;
  if (w.causal) end = min(end, (min(total, start + BLOCK) - 1) / group + 1);
  const long long from = blockIdx.y * w.chunk;
  end = min(end, from + w.chunk);
  const int steps = static_cast<int>(max(0ll, (end - from + KEYS - 1) / KEYS));

  {
    const ELEMENT* q = w.q + outer * g.q_outer + inner * g.q_inner;
    constexpr int PIECES = WIDTH / 8;
    for (int i = threadIdx.x; i < BLOCK * PIECES; i += THREADS) {
      const int row = i / PIECES, column = i % PIECES * 8;
      const long long r = start + row;
      const bool inside = r < total && column < HEAD;
      copy16(q_shared + row * K_ROW + column, q + (inside ? r / group * g.q_row + r % group * g.q_group + column : 0), inside);
    }
  }
  if (steps > 0) {
    bring<KEYS, THREADS, HEAD, K_ROW>(k_shared, k, from, end);
    bring<KEYS, THREADS, VALUE, V_ROW>(v_shared, v, from, end);
  }
  asm volatile("cp.async.commit_group;");

  const int lane = threadIdx.x & 31, quad = lane >> 2, turn = lane & 3, warp = threadIdx.x >> 5;
  const int key_warp = warp % KEY_WARPS, row_warp = warp / KEY_WARPS, own = key_warp * OWN;
  // The first of this lane's rows; the others are multiples of 8 further.
  const int mine = static_cast<int>(start) + row_warp * TILES * 16 + quad, shared_rows = static_cast<int>(total) - 1;
  const long long mask_head = outer * g.m_outer + inner * g.m_inner;
  // Scores in powers of two: scaled here where a mask is added, else together with the subtraction of the largest.
  const bool capped = w.cap > 0.0f, scaled = w.mask_kind != kNone || w.scale <= 0.0f || capped;
  const float factor = scaled ? 1.0f : w.scale * LOG2E;

  float result[TILES][RESULTS][4] = {};
  float largest[TILES][2], sum[TILES][2];
#pragma unroll
  for (int t = 0; t < TILES; ++t) {
    largest[t][0] = largest[t][1] = -INFINITY;
    sum[t][0] = sum[t][1] = 0.0f;
  }

  for (int step = 0; step < steps; ++step) {
    const ELEMENT* k_now = k_shared + ((step & 1) * KEYS + own) * K_ROW;
    const ELEMENT* v_now = v_shared + ((step & 1) * KEYS + own) * V_ROW;
    if (step + 1 < steps) {
      const int next = (step + 1) & 1;
      const long long first = from + static_cast<long long>(step + 1) * KEYS;
      bring<KEYS, THREADS, HEAD, K_ROW>(k_shared + next * KEYS * K_ROW, k, first, end);
      bring<KEYS, THREADS, VALUE, V_ROW>(v_shared + next * KEYS * V_ROW, v, first, end);
      asm volatile("cp.async.commit_group;");
      asm volatile("cp.async.wait_group 1;");
    } else {
      asm volatile("cp.async.wait_group 0;");
    }
    __syncthreads();

    float score[TILES][COLUMNS][4] = {};
#pragma unroll
    for (int j = 0; j < WIDTH / 16; ++j) {
      uint32_t query[TILES][4];
#pragma unroll
      for (int t = 0; t < TILES; ++t)
        load_matrices(query[t], q_shared + ((row_warp * TILES + t) * 16 + (lane & 15)) * K_ROW + 16 * j + 8 * (lane >> 4));
#pragma unroll
      for (int n = 0; n < COLUMNS; n += 2) {
        uint32_t b[4];
        load_matrices(b, k_now + (8 * n + (lane & 7) + 8 * (lane >> 4)) * K_ROW + 16 * j + (lane & 8));
#pragma unroll
        for (int t = 0; t < TILES; ++t) {
          multiply(score[t][n], query[t], b[0], b[1]);
          multiply(score[t][n + 1], query[t], b[2], b[3]);
        }
      }
    }

    const int column = static_cast<int>(from) + step * KEYS + own + 2 * turn, limit = static_cast<int>(end);
    const bool is_edge = column - 2 * turn + OWN > limit || (w.causal && column - 2 * turn + OWN - 1 > start / group);
    if (scaled || is_edge) {
#pragma unroll
      for (int t = 0; t < TILES; ++t) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int r = min(shared_rows, mine + 16 * t + 8 * half), row = r / group;
          const long long mask_at = mask_head + r % group * g.m_group + row * g.m_row;
#pragma unroll
          for (int n = 0; n < COLUMNS; ++n) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              const int key = column + 8 * n + e;
              float& x = score[t][n][2 * half + e];
              if (capped)
                x = w.cap * LOG2E * tanh_of(x * w.scale / w.cap);
              else if (scaled)
                x *= w.scale * LOG2E;
              if (key >= limit || (w.causal && key > row)) {
                x = -INFINITY;
              } else if (w.mask_kind != kNone) {
                x += masked(w, w.mask, mask_at + key * g.m_key);
              }
            }
          }
        }
      }
    }

#pragma unroll
    for (int t = 0; t < TILES; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float top = largest[t][half];
#pragma unroll
        for (int n = 0; n < COLUMNS; ++n) top = fmaxf(top, fmaxf(score[t][n][2 * half], score[t][n][2 * half + 1]));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        const float base = top == -INFINITY ? 0.0f : top * factor, shrink = power(largest[t][half] * factor - base);
        float part = 0.0f;
#pragma unroll
        for (int n = 0; n < COLUMNS; ++n) {
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            score[t][n][e] = power(fmaf(score[t][n][e], factor, -base));
            part += score[t][n][e];
          }
        }
        largest[t][half] = top;
        sum[t][half] = sum[t][half] * shrink + part;
#pragma unroll
        for (int d = 0; d < RESULTS; ++d) {
          result[t][d][2 * half] *= shrink;
          result[t][d][2 * half + 1] *= shrink;
        }
      }
    }

#pragma unroll
    for (int n = 0; n < COLUMNS; n += 2) {
      uint32_t weight[TILES][4];
#pragma unroll
      for (int t = 0; t < TILES; ++t) {
#pragma unroll
        for (int e = 0; e < 4; ++e) weight[t][e] = packed(score[t][n + e / 2][2 * (e & 1)], score[t][n + e / 2][2 * (e & 1) + 1]);
      }
#pragma unroll
      for (int d = 0; d < RESULTS; d += 2) {
        uint32_t b[4];
        load_transposed(b, v_now + (8 * n + (lane & 15)) * V_ROW + 8 * d + 8 * (lane >> 4));
#pragma unroll
        for (int t = 0; t < TILES; ++t) {
          multiply(result[t][d], weight[t], b[0], b[1]);
          multiply(result[t][d + 1], weight[t], b[2], b[3]);
        }
      }
    }
    __syncthreads();
  }

#pragma unroll
  for (int t = 0; t < TILES; ++t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum[t][half] += __shfl_xor_sync(0xffffffffu, sum[t][half], 1);
      sum[t][half] += __shfl_xor_sync(0xffffffffu, sum[t][half], 2);
      largest[t][half] *= factor;
    }
  }

  if (KEY_WARPS > 1) {
    // The first of the warps that share rows collects what the others found. TILES is 1.
    float* parts = reinterpret_cast<float*>(k_shared);
    float* states = parts + (KEY_WARPS - 1) * ROW_WARPS * 16 * VALUE_WIDTH;
    if (key_warp > 0) {
      const int place = (key_warp - 1) * ROW_WARPS + row_warp;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int r = place * 16 + 8 * half + quad;
        states[2 * r] = largest[0][half];
        states[2 * r + 1] = sum[0][half];
#pragma unroll
        for (int d = 0; d < RESULTS; ++d)
          *reinterpret_cast<float2*>(parts + r * VALUE_WIDTH + 8 * d + 2 * turn) =
              make_float2(result[0][d][2 * half], result[0][d][2 * half + 1]);
      }
    }
    __syncthreads();
    if (key_warp > 0) return;
    for (int other = 0; other < KEY_WARPS - 1; ++other) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int r = (other * ROW_WARPS + row_warp) * 16 + 8 * half + quad;
        const float top = fmaxf(largest[0][half], states[2 * r]), base = top == -INFINITY ? 0.0f : top;
        const float mine = power(largest[0][half] - base), theirs = power(states[2 * r] - base);
        largest[0][half] = top;
        sum[0][half] = sum[0][half] * mine + states[2 * r + 1] * theirs;
#pragma unroll
        for (int d = 0; d < RESULTS; ++d) {
          const float2 x = *reinterpret_cast<const float2*>(parts + r * VALUE_WIDTH + 8 * d + 2 * turn);
          result[0][d][2 * half] = result[0][d][2 * half] * mine + x.x * theirs;
          result[0][d][2 * half + 1] = result[0][d][2 * half + 1] * mine + x.y * theirs;
        }
      }
    }
  }

#pragma unroll
  for (int t = 0; t < TILES; ++t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const long long r = start + (row_warp * TILES + t) * 16 + 8 * half + quad;
      if (r >= total) continue;
      if (gridDim.y > 1) {
        const long long place = (blockIdx.y * w.batch + head) * total + r;
        if (turn == 0) {
          w.states[2 * place] = largest[t][half];
          w.states[2 * place + 1] = sum[t][half];
        }
#pragma unroll
        for (int d = 0; d < RESULTS; ++d) {
          if (8 * d < VALUE)
            *reinterpret_cast<float2*>(w.parts + place * VALUE + 8 * d + 2 * turn) =
                make_float2(result[t][d][2 * half], result[t][d][2 * half + 1]);
        }
        continue;
      }
      // A row whose keys are all masked is zero, as in PyTorch.
      const float share = sum[t][half] == 0.0f ? 0.0f : 1.0f / sum[t][half];
      ELEMENT* out = w.out + outer * g.o_outer + inner * g.o_inner + r % group * g.o_group + r / group * g.o_row;
#pragma unroll
      for (int d = 0; d < RESULTS; ++d) {
        if (8 * d < VALUE)
          *reinterpret_cast<uint32_t*>(out + 8 * d + 2 * turn) =
              packed(result[t][d][2 * half] * share, result[t][d][2 * half + 1] * share);
      }
    }
  }
}

// Puts the splits of a row together: a warp for each row.
__global__ void __launch_bounds__(128) combine(Work w, int splits) {
  const Geometry& g = w.g;
  const long long total = g.rows * g.group, place = (blockIdx.x * 128ll + threadIdx.x) / 32;
  if (place >= w.batch * total) return;
  const int lane = threadIdx.x & 31;
  float top = -INFINITY;
  for (int s = 0; s < splits; ++s) top = fmaxf(top, w.states[2 * (s * w.batch * total + place)]);
  const float base = top == -INFINITY ? 0.0f : top;
  constexpr int PAIRS = (VALUE + 63) / 64;
  float2 result[PAIRS] = {};
  float sum = 0.0f;
  for (int s = 0; s < splits; ++s) {
    const long long at = s * w.batch * total + place;
    const float share = power(w.states[2 * at] - base);
    sum += share * w.states[2 * at + 1];
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
      const int column = 64 * i + 2 * lane;
      if (column >= VALUE) continue;
      const float2 x = *reinterpret_cast<const float2*>(w.parts + at * VALUE + column);
      result[i].x += share * x.x;
      result[i].y += share * x.y;
    }
  }
  const float share = sum == 0.0f ? 0.0f : 1.0f / sum;
  const long long head = place / total, r = place % total;
  ELEMENT* out = w.out + head / g.inner * g.o_outer + head % g.inner * g.o_inner + r % g.group * g.o_group + r / g.group * g.o_row;
#pragma unroll
  for (int i = 0; i < PAIRS; ++i) {
    const int column = 64 * i + 2 * lane;
    if (column < VALUE) *reinterpret_cast<uint32_t*>(out + column) = packed(result[i].x * share, result[i].y * share);
  }
}

// `waves`: blocks for each multiprocessor that splitting the keys aims at; 0: no splitting.
template <int KEYS, int ROW_WARPS, int KEY_WARPS, int TILES>
int run(Work w, float* scratch, long long most_splits, int waves, cudaStream_t stream) {
  constexpr int BLOCK = ROW_WARPS * TILES * 16, THREADS = 32 * ROW_WARPS * KEY_WARPS;
  constexpr int BYTES = (BLOCK * K_ROW + 2 * KEYS * (K_ROW + V_ROW)) * 2;
  static_assert(KEY_WARPS == 1 || (TILES == 1 && (KEY_WARPS - 1) * ROW_WARPS * 16 * (VALUE_WIDTH + 2) * 4 <= 4 * KEYS * (K_ROW + V_ROW)), "");
  if (BYTES > 227 * 1024) return -1;
  cudaError_t status =
      cudaFuncSetAttribute(attention<KEYS, ROW_WARPS, KEY_WARPS, TILES>, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
  if (status != cudaSuccess) return static_cast<int>(status);
  const long long total = w.g.rows * w.g.group, count = (total + BLOCK - 1) / BLOCK * w.batch;
  long long splits = 1;
  if (waves > 0) {
    int device = 0, processors = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    splits = min((static_cast<long long>(waves) * processors + count - 1) / count, (w.g.keys + 2 * KEYS - 1) / (2 * KEYS));
    splits = max(1ll, min(splits, most_splits));
    if (splits == 1) return -1;
  }
  w.chunk = ((w.g.keys + splits - 1) / splits + KEYS - 1) / KEYS * KEYS;
  splits = (w.g.keys + w.chunk - 1) / w.chunk;
  w.parts = scratch;
  w.states = scratch + splits * w.batch * total * VALUE;
  attention<KEYS, ROW_WARPS, KEY_WARPS, TILES>
      <<<dim3(static_cast<unsigned>(count), static_cast<unsigned>(splits)), THREADS, BYTES, stream>>>(w);
  if (splits > 1) combine<<<static_cast<unsigned>((w.batch * total + 3) / 4), 128, 0, stream>>>(w, static_cast<int>(splits));
  return static_cast<int>(cudaGetLastError());
}

}  // namespace

extern "C" int launch_attention_library(void* out, const void* q, const void* k, const void* v, const void* mask, void* scratch,
                                        long long scratch_bytes, const long long* geometry, int width, int value, float scale,
                                        float cap, int causal, int mask_kind, int is_float16, int engine, cudaStream_t stream);

// geometry: outer, inner, group, rows, keys, the largest number of splits that `scratch` has room for (VALUE + 2 floats for
// each and for each row of the result), then the strides in elements: q (outer, inner, group, row), k (outer, inner, row),
// v, out as q, mask (outer, inner, group, row, key); with JOINED also the keys in k and v, and strides of those behind them, kk
// and vv. All strides but the mask's are multiples of 8, pointers of 16 bytes.
// cap: the soft cap, 0 for none. mask_kind: 0 none, 1 added, of the inputs' type, 2 added, float32, 3 boolean. Settings 0 to 3
// are the library's engines; where the library has none, setting 0 is the first of this kernel's own, which come behind them.
// Returns a CUDA error, -1 for a setting that doesn't exist here, -2 for an error of the library.
extern "C" int LAUNCH(void* out, const void* q, const void* k, const void* v, const void* kk, const void* vv, const void* mask,
                      void* scratch, long long scratch_bytes, const long long* geometry, float scale, float cap, int causal, int mask_kind,
                      int config, cudaStream_t stream) {
  constexpr int ENGINES = 4;
  if (config < ENGINES) {
    const int status = JOINED ? -1
                              : launch_attention_library(out, q, k, v, mask, scratch, scratch_bytes, geometry, HEAD, VALUE, scale,
                                                         cap, causal, mask_kind, !IS_BFLOAT16, config, stream);
    if (status != -1 || config > 0) return status;
    config = ENGINES;
  }
  const long long* s = geometry;
  Work w;
  w.g = {s[1],  s[2],  s[3],  s[4],  s[6],  s[7],  s[8],  s[9],  s[10], s[11], s[12], s[13],
         s[14], s[15], s[16], s[17], s[18], s[19], s[20], s[21], s[22], s[23], s[24]};
  if (JOINED) {
    w.g.joint = s[25];
    w.g.kk_outer = s[26], w.g.kk_inner = s[27], w.g.kk_row = s[28];
    w.g.vv_outer = s[29], w.g.vv_inner = s[30], w.g.vv_row = s[31];
  }
  w.out = static_cast<ELEMENT*>(out);
  w.q = static_cast<const ELEMENT*>(q);
  w.k = static_cast<const ELEMENT*>(k);
  w.v = static_cast<const ELEMENT*>(v);
  w.kk = static_cast<const ELEMENT*>(kk);
  w.vv = static_cast<const ELEMENT*>(vv);
  w.mask = mask;
  w.batch = s[0] * s[1];
  w.scale = scale;
  w.cap = cap;
  w.mask_kind = mask_kind;
  w.causal = causal;
  float* room = static_cast<float*>(scratch);
  switch (config - ENGINES) {
    case 0: return run<64, 4, 1, 1>(w, room, 1, 0, stream);
#if HEAD <= 128 && VALUE <= 128
    case 1: return run<64, 4, 1, 2>(w, room, 1, 0, stream);
#else
    case 1: return run<32, 8, 1, 1>(w, room, 1, 0, stream);
#endif
    case 2: return run<64, 8, 1, 1>(w, room, 1, 0, stream);
    case 3: return run<64, 1, 4, 1>(w, room, s[5], 3, stream);
    case 4: return run<64, 1, 4, 1>(w, room, 1, 0, stream);
    case 5: return run<64, 1, 4, 1>(w, room, s[5], 8, stream);
    case 6: return run<64, 4, 1, 1>(w, room, s[5], 2, stream);
    default: return -1;
  }
}
