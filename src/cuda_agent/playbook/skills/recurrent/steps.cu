// One layer of a recurrent network step by step: a matrix product makes the sums of all gates, then a kernel makes the states.
// For batches whose products are worth tensor cores, and for weights that no registers hold.
#include "elementwise.cuh"

// 0 LSTM (gates i, f, g, o), 1 GRU (r, z, n), 2 tanh, 3 ReLU.
#define KIND 0

// Of gemm.cu.
extern "C" int launch_gemm(void* d, const void* a, const void* b, const void* bias, long long m, long long n, long long k,
                           long long batch, long long lda, long long ldb, long long ldd, long long stride_a,
                           long long stride_b, long long stride_d, long long outer, long long outer_a, long long outer_b,
                           long long outer_d, int transpose_a, int transpose_b, int type, int math, int activation,
                           int config, cudaStream_t stream);

namespace {

constexpr int GATES = KIND == 0 ? 4 : KIND == 1 ? 3 : 1;
constexpr int THREADS = 256;

// Pointers as in launch_recurrent_steps, but for what is null in the first step: `sums`, and the states `before` it.
struct Step {
  float *out, *last, *cell;
  const float *sums, *given, *bias, *before, *cell_before;
  long long given_step, given_row, out_step, out_row, count;
  int step, steps, batch, hidden;
};

// A thread makes one unit's state of one batch row.
__global__ void __launch_bounds__(THREADS) make_states(Step s) {
  const long long place = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
  if (place >= s.count) return;
  const int unit = static_cast<int>(place % s.hidden);
  const long long pair = place / s.hidden;
  const int row = static_cast<int>(pair % s.batch), direction = static_cast<int>(pair / s.batch);
  const long long time = direction ? s.steps - 1 - s.step : s.step;
  const float* given = s.given + time * s.given_step + row * s.given_row + static_cast<long long>(direction) * GATES * s.hidden + unit;
  const float* sums = s.sums ? s.sums + pair * GATES * s.hidden + unit : nullptr;
  const float* bias = s.bias ? s.bias + static_cast<long long>(direction) * GATES * s.hidden + unit : nullptr;
  // From the state and from the input.
  float mine[GATES], theirs[GATES];
#pragma unroll
  for (int gate = 0; gate < GATES; ++gate) {
    theirs[gate] = __ldg(given + static_cast<long long>(gate) * s.hidden);
    mine[gate] = (sums ? sums[static_cast<long long>(gate) * s.hidden] : 0.0f) +
                 (bias ? __ldg(bias + static_cast<long long>(gate) * s.hidden) : 0.0f);
  }
  float state;
  if constexpr (KIND == 0) {
    const float before = s.cell_before ? s.cell_before[place] : 0.0f;
    const float cell = f_sigmoid(mine[1] + theirs[1]) * before + f_sigmoid(mine[0] + theirs[0]) * f_tanh(mine[2] + theirs[2]);
    state = f_sigmoid(mine[3] + theirs[3]) * f_tanh(cell);
    s.cell[place] = cell;
  } else if constexpr (KIND == 1) {
    const float before = s.before ? s.before[place] : 0.0f;
    const float fresh = f_tanh(theirs[2] + f_sigmoid(mine[0] + theirs[0]) * mine[2]);
    state = fresh + f_sigmoid(mine[1] + theirs[1]) * (before - fresh);
  } else {
    state = KIND == 2 ? f_tanh(mine[0] + theirs[0]) : f_relu(mine[0] + theirs[0]);
  }
  s.last[place] = state;
  s.out[time * s.out_step + row * s.out_row + static_cast<long long>(direction) * s.hidden + unit] = state;
}

}  // namespace

// out [steps, batch, directions · hidden], last and cell [directions, batch, hidden] of the weights' products with
// given [steps, batch, directions · GATES · hidden], weights [directions, GATES · hidden, hidden], bias [directions,
// GATES · hidden] or null, first and first_cell like last or null. sums: room for [directions, batch, GATES · hidden].
// sizes: steps, batch, directions, the distances of steps and rows in given and in out, hidden. math and config: of
// launch_gemm.
extern "C" int launch_recurrent_steps(void* out, void* last, void* cell, const void* given, const void* weights, const void* bias,
                                      const void* first, const void* first_cell, void* sums, const long long* sizes, int math,
                                      int config, cudaStream_t stream) {
  const auto read = [](const void* p) { return static_cast<const float*>(p); };
  const long long batch = sizes[1], directions = sizes[2], hidden = sizes[7], width = GATES * hidden;
  Step s = {static_cast<float*>(out), static_cast<float*>(last), static_cast<float*>(cell), nullptr, read(given), read(bias),
            read(first), read(first_cell), sizes[3], sizes[4], sizes[5], sizes[6], directions * batch * hidden, 0,
            static_cast<int>(sizes[0]), static_cast<int>(batch), static_cast<int>(hidden)};
  for (; s.step < s.steps; ++s.step) {
    if (s.before) {
      const int status = launch_gemm(sums, s.before, weights, nullptr, batch, width, hidden, directions, hidden, hidden, width,
                                     batch * hidden, width * hidden, batch * width, 1, 0, 0, 0, 0, 1, 0, math, 0, config, stream);
      if (status) return status;
      s.sums = read(sums);
    }
    void* arguments[] = {&s};
    const dim3 blocks(static_cast<unsigned>((s.count + THREADS - 1) / THREADS));
    const cudaError_t status = cudaLaunchKernel(make_states, blocks, dim3(THREADS), arguments, 0, stream);
    if (status != cudaSuccess) return static_cast<int>(status);
    s.before = s.last;
    s.cell_before = s.cell;
  }
  return 0;
}
