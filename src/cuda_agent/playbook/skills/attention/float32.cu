// softmax(capped(q·kᵀ·scale) + mask)·v in one kernel, float32 through the tensor cores' TF32 (mma.sync), without the scores
// in memory; capped(x) = cap·tanh(x / cap) where there is a soft cap.
//
// Query heads that share keys lie together: row r of a block is row r / group of head r % group. A warp holds 16 · TILES
// query rows and walks over the keys, KEYS at a time, which cp.async brings into shared memory one step ahead. Rows of softmax are kept as running maximum and sum. The tensor cores sum over an index in any order, so
// fragments take what lies together: four neighbours of a row of k serve two products, two neighbouring scores of a lane
// are the operand of the second product as they are, and four neighbours of a row of v serve four columns of the result.
// EXACT: scores are products of q and k as sums of two TF32 numbers each, as precise as float32. An error of a score is a
// relative error of its weight, and so grows with the scores. Weights and v are sums of two bfloat16 numbers each, which
// leaves 2^-17 of them.
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>

// Of a head: a multiple of 4, at most 128.
#define HEAD 64
// Neither mask nor soft cap nor shared heads, which take registers.
#define PLAIN 1
#define LAUNCH launch_attention_float32

namespace {

// With zeros behind it.
constexpr int WIDTH = (HEAD + 31) / 32 * 32;

constexpr float LOG2E = 1.4426950408889634f;

enum Mask { kNone, kElement, kFloat, kBoolean };

struct Geometry {
  long long inner, group, rows, keys;
  long long q_outer, q_inner, q_group, q_row, k_outer, k_inner, k_row, v_outer, v_inner, v_row;
  long long o_outer, o_inner, o_group, o_row, m_outer, m_inner, m_group, m_row, m_key;
};

// What happens to scores before their softmax.
struct Scores {
  const void* mask;
  float factor, cap;
  int mask_kind, causal;
};

// 1 - 2 / (1 + e^2x): an absolute error of 1e-7, which a cap of 100 keeps small beside a score's own.
__device__ __forceinline__ float tanh_of(float x) { return 1.0f - __fdividef(2.0f, 1.0f + exp2f(2.0f * LOG2E * x)); }

__device__ __forceinline__ float masked(const Scores& s, long long at) {
  if (s.mask_kind == kBoolean) return static_cast<const uint8_t*>(s.mask)[at] ? 0.0f : -INFINITY;
  return static_cast<const float*>(s.mask)[at] * LOG2E;
}

// Rounded to nearest; the tensor cores would cut.
__device__ __forceinline__ uint32_t tf32(float x) {
  uint32_t y;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
  return y;
}

// What TF32 leaves out of a number, as TF32.
__device__ __forceinline__ uint32_t left(float x, uint32_t whole) { return tf32(x - __uint_as_float(whole)); }

// Volatile, so that it is done again at each step: kept, both parts of all queries take more registers than there are.
__device__ __forceinline__ void parted(uint32_t x, uint32_t& whole, uint32_t& rest) {
  asm volatile("cvt.rna.tf32.f32 %0, %1;" : "=r"(whole) : "f"(__uint_as_float(x)));
  rest = left(__uint_as_float(x), whole);
}

template <bool EXACT>
__device__ __forceinline__ uint32_t operand(float x) {
  return EXACT ? __float_as_uint(x) : tf32(x);
}

// c[16 × 8] += a[16 × 8] · b[8 × 8]
__device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two numbers rounded to bfloat16, x in the lower half, and what that leaves out of both.
__device__ __forceinline__ void halved(float x, float y, uint32_t& whole, uint32_t& rest) {
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(whole) : "f"(y), "f"(x));
  const float x_left = x - __uint_as_float(whole << 16), y_left = y - __uint_as_float(whole & 0xffff0000u);
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(rest) : "f"(y_left), "f"(x_left));
}

// c[16 × 8] += a[16 × 16] · b[16 × 8]
__device__ __forceinline__ void multiply_halved(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// 16 bytes to shared memory, zeros where there is nothing to read.
__device__ __forceinline__ void copy16(float* to, const float* from, bool inside) {
  const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(inside ? 16 : 0));
}

__device__ __forceinline__ float4 load4(const float* p) { return *reinterpret_cast<const float4*>(p); }

// Row lengths in shared memory for which neither product's loads meet in a bank.
constexpr int K_ROW = WIDTH + 16, V_ROW = WIDTH + 4;

template <int KEYS, int WARPS>
__device__ __forceinline__ void bring(float* k_to, float* v_to, const float* k, const float* v, const Geometry& g, int first) {
  constexpr int PIECES = WIDTH / 4;
  for (int i = threadIdx.x; i < KEYS * PIECES; i += 32 * WARPS) {
    const int row = i / PIECES, column = i % PIECES * 4;
    const bool inside = first + row < g.keys && (HEAD == WIDTH || column < HEAD);
    const long long at_k = inside ? (first + row) * g.k_row + column : 0;
    const long long at_v = inside ? (first + row) * g.v_row + column : 0;
    copy16(k_to + row * K_ROW + column, k + at_k, inside);
    copy16(v_to + row * V_ROW + column, v + at_v, inside);
  }
  asm volatile("cp.async.commit_group;");
}

template <int KEYS, int WARPS, int TILES, bool EXACT>
__global__ void __launch_bounds__(32 * WARPS)
    attention(float* __restrict__ out, const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v,
              Geometry g, long long batch, Scores s) {
  constexpr int BLOCK = WARPS * TILES * 16, PAIRS = (HEAD + 15) / 16, BLOCKS_OF_KEYS = KEYS / 8, QUARTERS = WIDTH / 32;
  extern __shared__ float4 memory[];
  float* k_shared = reinterpret_cast<float*>(memory);
  float* v_shared = k_shared + 2 * KEYS * K_ROW;

  // Causal: the blocks with most keys begin first. Otherwise those that share keys follow each other.
  const long long total = g.rows * g.group, blocks = (total + BLOCK - 1) / BLOCK;
  const int group = PLAIN ? 1 : static_cast<int>(g.group);
  const long long block = s.causal ? blocks - 1 - blockIdx.x / batch : blockIdx.x % blocks;
  const long long head = s.causal ? blockIdx.x % batch : blockIdx.x / blocks;
  const long long outer = head / g.inner, inner = head % g.inner;
  q += outer * g.q_outer + inner * g.q_inner;
  k += outer * g.k_outer + inner * g.k_inner;
  v += outer * g.v_outer + inner * g.v_inner;
  out += outer * g.o_outer + inner * g.o_inner;

  const int lane = threadIdx.x & 31, quad = lane >> 2, turn = lane & 3;
  const int first = static_cast<int>(block * BLOCK) + (threadIdx.x >> 5) * TILES * 16;

  // TF32, or float32 where its remainders are needed too.
  uint32_t query[TILES][2 * PAIRS][4];
#pragma unroll
  for (int t = 0; t < TILES; ++t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const long long r = first + 16 * t + 8 * half + quad;
      const float* row = q + r / group * g.q_row + r % group * g.q_group;
#pragma unroll
      for (int j = 0; j < PAIRS; ++j) {
        float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        const int column = 16 * j + 4 * turn;
        if (r < total && (HEAD % 16 == 0 || column < HEAD)) x = load4(row + column);
        query[t][2 * j][half] = operand<EXACT>(x.x * s.factor);
        query[t][2 * j][half + 2] = operand<EXACT>(x.y * s.factor);
        query[t][2 * j + 1][half] = operand<EXACT>(x.z * s.factor);
        query[t][2 * j + 1][half + 2] = operand<EXACT>(x.w * s.factor);
      }
    }
  }

  float result[TILES][QUARTERS][4][4] = {};
  float largest[TILES][2], sum[TILES][2];
#pragma unroll
  for (int t = 0; t < TILES; ++t) {
    largest[t][0] = largest[t][1] = -INFINITY;
    sum[t][0] = sum[t][1] = 0.0f;
  }

  const long long end = s.causal ? min(g.keys, (min(total, (block + 1) * BLOCK) - 1) / group + 1) : g.keys;
  const int steps = static_cast<int>((end + KEYS - 1) / KEYS);
  bring<KEYS, WARPS>(k_shared, v_shared, k, v, g, 0);
  for (int step = 0; step < steps; ++step) {
    const float* k_now = k_shared + (step & 1) * KEYS * K_ROW;
    const float* v_now = v_shared + (step & 1) * KEYS * V_ROW;
    if (step + 1 < steps) {
      const int next = (step + 1) & 1;
      bring<KEYS, WARPS>(k_shared + next * KEYS * K_ROW, v_shared + next * KEYS * V_ROW, k, v, g,
                                (step + 1) * KEYS);
      asm volatile("cp.async.wait_group 1;");
    } else {
      asm volatile("cp.async.wait_group 0;");
    }
    __syncthreads();

    float score[TILES][BLOCKS_OF_KEYS][4] = {};
#pragma unroll
    for (int j = 0; j < PAIRS; ++j) {
      uint32_t whole[TILES][2][4], rest[TILES][2][4];
#pragma unroll
      for (int t = 0; t < TILES && EXACT; ++t) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
          for (int e = 0; e < 4; ++e) parted(query[t][2 * j + i][e], whole[t][i][e], rest[t][i][e]);
        }
      }
#pragma unroll
      for (int n = 0; n < BLOCKS_OF_KEYS; ++n) {
        const float4 x = load4(k_now + (8 * n + quad) * K_ROW + 16 * j + 4 * turn);
        const uint32_t b0 = tf32(x.x), b1 = tf32(x.y), b2 = tf32(x.z), b3 = tf32(x.w);
        if (EXACT) {
          const uint32_t r0 = left(x.x, b0), r1 = left(x.y, b1), r2 = left(x.z, b2), r3 = left(x.w, b3);
#pragma unroll
          for (int t = 0; t < TILES; ++t) {
            multiply(score[t][n], rest[t][0], b0, b1);
            multiply(score[t][n], rest[t][1], b2, b3);
            multiply(score[t][n], whole[t][0], r0, r1);
            multiply(score[t][n], whole[t][1], r2, r3);
            multiply(score[t][n], whole[t][0], b0, b1);
            multiply(score[t][n], whole[t][1], b2, b3);
          }
        } else {
#pragma unroll
          for (int t = 0; t < TILES; ++t) {
            multiply(score[t][n], query[t][2 * j], b0, b1);
            multiply(score[t][n], query[t][2 * j + 1], b2, b3);
          }
        }
      }
    }

    const int column = step * KEYS + 2 * turn;
    const bool changed = !PLAIN && (s.mask_kind != kNone || s.cap > 0.0f);
    if (changed || step * KEYS + KEYS > g.keys || (s.causal && step * KEYS + KEYS - 1 > first / group)) {
#pragma unroll
      for (int t = 0; t < TILES; ++t) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int r = min(static_cast<int>(total) - 1, first + 16 * t + 8 * half + quad), row = r / group;
          const long long at = outer * g.m_outer + inner * g.m_inner + r % group * g.m_group + row * g.m_row;
#pragma unroll
          for (int n = 0; n < BLOCKS_OF_KEYS; ++n) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              const int key = column + 8 * n + e;
              float& x = score[t][n][2 * half + e];
              if (!PLAIN && s.cap > 0.0f) x = s.cap * LOG2E * tanh_of(x);
              if (key >= g.keys || (s.causal && key > row)) {
                x = -INFINITY;
              } else if (!PLAIN && s.mask_kind != kNone) {
                x += masked(s, at + key * g.m_key);
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
        for (int n = 0; n < BLOCKS_OF_KEYS; ++n) top = fmaxf(top, fmaxf(score[t][n][2 * half], score[t][n][2 * half + 1]));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        const float base = top == -INFINITY ? 0.0f : top, shrink = exp2f(largest[t][half] - base);
        float total = 0.0f;
#pragma unroll
        for (int n = 0; n < BLOCKS_OF_KEYS; ++n) {
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            // Rounded before it is summed: what divides is the sum of the weights that multiply.
            const float weight = exp2f(score[t][n][e] - base);
            score[t][n][e] = EXACT ? weight : __uint_as_float(tf32(weight));
            total += score[t][n][e];
          }
        }
        largest[t][half] = top;
        sum[t][half] = sum[t][half] * shrink + total;
#pragma unroll
        for (int d = 0; d < QUARTERS; ++d) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            result[t][d][i][2 * half] *= shrink;
            result[t][d][i][2 * half + 1] *= shrink;
          }
        }
      }
    }

    if (EXACT) {
#pragma unroll
      for (int n = 0; n < BLOCKS_OF_KEYS; n += 2) {
        uint32_t whole[TILES][4], rest[TILES][4];
#pragma unroll
        for (int t = 0; t < TILES; ++t) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const float* pair = score[t][n + e / 2] + 2 * (e & 1);
            halved(pair[0], pair[1], whole[t][e], rest[t][e]);
          }
        }
#pragma unroll
        for (int d = 0; d < QUARTERS; ++d) {
          const float* at = v_now + (8 * n + 2 * turn) * V_ROW + 32 * d + 4 * quad;
          const float4 rows[4] = {load4(at), load4(at + V_ROW), load4(at + 8 * V_ROW), load4(at + 9 * V_ROW)};
          const float w[4][4] = {{rows[0].x, rows[1].x, rows[2].x, rows[3].x},
                                 {rows[0].y, rows[1].y, rows[2].y, rows[3].y},
                                 {rows[0].z, rows[1].z, rows[2].z, rows[3].z},
                                 {rows[0].w, rows[1].w, rows[2].w, rows[3].w}};
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            uint32_t b0, b1, r0, r1;
            halved(w[i][0], w[i][1], b0, r0);
            halved(w[i][2], w[i][3], b1, r1);
#pragma unroll
            for (int t = 0; t < TILES; ++t) {
              multiply_halved(result[t][d][i], rest[t], b0, b1);
              multiply_halved(result[t][d][i], whole[t], r0, r1);
              multiply_halved(result[t][d][i], whole[t], b0, b1);
            }
          }
        }
      }
    }
#pragma unroll
    for (int n = 0; n < BLOCKS_OF_KEYS && !EXACT; ++n) {
      uint32_t weight[TILES][4];
#pragma unroll
      for (int t = 0; t < TILES; ++t) {
        weight[t][0] = __float_as_uint(score[t][n][0]);
        weight[t][1] = __float_as_uint(score[t][n][2]);
        weight[t][2] = __float_as_uint(score[t][n][1]);
        weight[t][3] = __float_as_uint(score[t][n][3]);
      }
#pragma unroll
      for (int d = 0; d < QUARTERS; ++d) {
        const float* at = v_now + (8 * n + 2 * turn) * V_ROW + 32 * d + 4 * quad;
        const float4 x = load4(at), y = load4(at + V_ROW);
#pragma unroll
        for (int t = 0; t < TILES; ++t) {
          multiply(result[t][d][0], weight[t], tf32(x.x), tf32(y.x));
          multiply(result[t][d][1], weight[t], tf32(x.y), tf32(y.y));
          multiply(result[t][d][2], weight[t], tf32(x.z), tf32(y.z));
          multiply(result[t][d][3], weight[t], tf32(x.w), tf32(y.w));
        }
      }
    }
    __syncthreads();
  }

#pragma unroll
  for (int t = 0; t < TILES; ++t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float weights = sum[t][half];
      weights += __shfl_xor_sync(0xffffffffu, weights, 1);
      weights += __shfl_xor_sync(0xffffffffu, weights, 2);
      // A row whose keys are all masked is zero, as in PyTorch.
      const float share = weights == 0.0f ? 0.0f : 1.0f / weights;
      const long long r = first + 16 * t + 8 * half + quad;
      if (r >= total) continue;
      float* row = out + r / group * g.o_row + r % group * g.o_group;
#pragma unroll
      for (int d = 0; d < QUARTERS; ++d) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int c = 2 * half + e, column = 32 * d + 8 * turn + 4 * e;
          if (HEAD < WIDTH && column >= HEAD) continue;
          const float4 x = make_float4(result[t][d][0][c] * share, result[t][d][1][c] * share, result[t][d][2][c] * share,
                                       result[t][d][3][c] * share);
          *reinterpret_cast<float4*>(row + column) = x;
        }
      }
    }
  }
}

template <int KEYS, int WARPS, int TILES, bool EXACT = false>
int run(float* out, const float* q, const float* k, const float* v, const Geometry& g, long long batch,
        const Scores& s, cudaStream_t stream) {
  constexpr int BYTES = 2 * KEYS * (K_ROW + V_ROW) * 4, BLOCK = WARPS * TILES * 16;
  const cudaError_t status =
      cudaFuncSetAttribute(attention<KEYS, WARPS, TILES, EXACT>, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
  if (status != cudaSuccess) return static_cast<int>(status);
  const long long count = (g.rows * g.group + BLOCK - 1) / BLOCK * batch;
  attention<KEYS, WARPS, TILES, EXACT><<<static_cast<unsigned>(count), 32 * WARPS, BYTES, stream>>>(
      out, q, k, v, g, batch, s);
  return static_cast<int>(cudaGetLastError());
}

}  // namespace

// geometry: outer, inner, group, rows, keys, a number of splits that isn't used here, and the strides in elements: q (outer,
// inner, group, row), k (outer, inner, row), v, out as q, mask (outer, inner, group, row, key). All strides but the mask's are
// multiples of 4, pointers of 16 bytes. cap: the soft cap, 0 for none. mask_kind: 0 none, 1 and 2 added, 3 boolean. Returns a
// CUDA error, -1 for a setting that doesn't exist.
extern "C" int LAUNCH(void* out, const void* q, const void* k, const void* v, const void* mask, const long long* geometry,
                      float scale, float cap, int causal, int mask_kind, int config, cudaStream_t stream) {
  const long long* p = geometry;
  const Geometry g = {p[1],  p[2],  p[3],  p[4],  p[6],  p[7],  p[8],  p[9],  p[10], p[11], p[12], p[13],
                      p[14], p[15], p[16], p[17], p[18], p[19], p[20], p[21], p[22], p[23], p[24]};
  const long long batch = p[0] * p[1];
  // Softmax in powers of two.
  const Scores s = {mask, cap > 0.0f ? scale / cap : scale * LOG2E, cap, mask_kind, causal};
  float* o = static_cast<float*>(out);
  const float *a = static_cast<const float*>(q), *b = static_cast<const float*>(k), *c = static_cast<const float*>(v);
  // Two tiles of rows share what is read of keys and values, as long as registers last.
#if HEAD <= 64
  if (config == 0) return run<32, 4, 2, true>(o, a, b, c, g, batch, s, stream);
  if (config == 1) return run<32, 4, 2>(o, a, b, c, g, batch, s, stream);
  if (config == 2) return run<48, 4, 2>(o, a, b, c, g, batch, s, stream);
#else
  if (config == 0) return run<32, 8, 1, true>(o, a, b, c, g, batch, s, stream);
  if (config == 1) return run<32, 8, 1>(o, a, b, c, g, batch, s, stream);
  if (config == 2) return run<64, 8, 1>(o, a, b, c, g, batch, s, stream);
#endif
  if (config == 3) return run<64, 4, 1>(o, a, b, c, g, batch, s, stream);
  if (config == 4) return run<32, 4, 1>(o, a, b, c, g, batch, s, stream);
  return -1;
}
