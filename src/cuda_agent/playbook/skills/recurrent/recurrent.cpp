// One layer of a recurrent network over a whole sequence.
//
// A thread keeps the same units for all steps, so their weights stay in its cache: for every vector of units the weights of all
// gates, state by state. It multiplies them with a few batch rows at a time, and makes the new states of these at once.
#include "elementwise.h"

// 0 LSTM (gates i, f, g, o), 1 GRU (r, z, n), 2 tanh, 3 ReLU.
#define KIND 0
#define HIDDEN 256

namespace {

#ifdef __AVX512F__
constexpr long LANES = 16;
#else
constexpr long LANES = 8;
#endif
typedef float Vector __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

constexpr long GATES = KIND == 0 ? 4 : KIND == 1 ? 3 : 1;
constexpr long BLOCKS = (HIDDEN + LANES - 1) / LANES;
// Of a thread's registers, for sums.
constexpr long MOST_ROWS = (LANES == 16 ? 24 : 12) / GATES < 8 ? (LANES == 16 ? 24 : 12) / GATES : 8;
// Of the packed weights of a vector of units.
constexpr long EACH = HIDDEN * GATES * LANES;

struct Layer {
  float *out, *last, *cell;
  const float *given, *weights, *bias, *first, *first_cell;
  float* packed;
  long steps, batch, directions, given_step, given_row, out_step, out_row;
};

// A vector of units of one direction: [state, gate, unit], zero beyond the last unit.
void pack(const Layer& layer, long direction, long block) {
  float* to = layer.packed + (direction * BLOCKS + block) * EACH;
  for (long gate = 0; gate < GATES; ++gate)
    for (long lane = 0; lane < LANES; ++lane) {
      const long unit = block * LANES + lane;
      const float* row = layer.weights + ((direction * GATES + gate) * HIDDEN + unit) * HIDDEN;
      for (long k = 0; k < HIDDEN; ++k) to[(k * GATES + gate) * LANES + lane] = unit < HIDDEN ? row[k] : 0.0f;
    }
}

template <long ROWS>
INLINE void products(float (&sums)[ROWS][GATES][LANES], const float* w, const float* states, long apart) {
  Vector kept[ROWS][GATES] = {};
  if (states) {
    for (long k = 0; k < HIDDEN; ++k)
#pragma GCC unroll 4
      for (long gate = 0; gate < GATES; ++gate) {
        const Vector x = *reinterpret_cast<const Vector*>(w + (k * GATES + gate) * LANES);
#pragma GCC unroll 8
        for (long row = 0; row < ROWS; ++row) kept[row][gate] += x * states[row * apart + k];
      }
  }
  memcpy(sums, kept, sizeof sums);
}

// The new states of a vector of units in a few batch rows.
template <long ROWS>
void advance(const Layer& layer, long direction, long block, long step, long begin) {
  const long time = direction ? layer.steps - 1 - step : step, before = direction ? time + 1 : time - 1;
  const long base = direction * HIDDEN, unit = block * LANES, here = HIDDEN - unit < LANES ? HIDDEN - unit : LANES;
  const long place = (direction * layer.batch + begin) * HIDDEN;
  const float* states = step ? layer.out + before * layer.out_step + begin * layer.out_row + base
                        : layer.first ? layer.first + place : nullptr;
  const long apart = step ? layer.out_row : HIDDEN;
  float sums[ROWS][GATES][LANES];
  products<ROWS>(sums, layer.packed + (direction * BLOCKS + block) * EACH, states, apart);
  for (long row = 0; row < ROWS; ++row) {
    const float* x = layer.given + time * layer.given_step + (begin + row) * layer.given_row + GATES * base + unit;
    const float* b = layer.bias ? layer.bias + GATES * base + unit : nullptr;
    const float* old = states ? states + row * apart + unit : nullptr;
    const float* cell_before = step ? layer.cell : layer.first_cell;
    float* h = layer.out + time * layer.out_step + (begin + row) * layer.out_row + base + unit;
    float* c = KIND == 0 ? layer.cell + place + row * HIDDEN + unit : nullptr;
    const float* c_old = KIND == 0 && cell_before ? cell_before + place + row * HIDDEN + unit : nullptr;
#pragma omp simd
    for (long lane = 0; lane < here; ++lane) {
      float of_state[GATES], whole[GATES];
      for (long gate = 0; gate < GATES; ++gate) {
        of_state[gate] = sums[row][gate][lane] + (b ? b[gate * HIDDEN + lane] : 0.0f);
        whole[gate] = of_state[gate] + x[gate * HIDDEN + lane];
      }
      if (KIND == 0) {
        const float cell = f_sigmoid(whole[1]) * (c_old ? c_old[lane] : 0.0f) + f_sigmoid(whole[0]) * f_tanh(whole[2 % GATES]);
        c[lane] = cell;
        h[lane] = f_sigmoid(whole[3 % GATES]) * f_tanh(cell);
      } else if (KIND == 1) {
        const float fresh = f_tanh(x[2 * HIDDEN + lane] + f_sigmoid(whole[0]) * of_state[2 % GATES]);
        h[lane] = fresh + f_sigmoid(whole[1 % GATES]) * ((old ? old[lane] : 0.0f) - fresh);
      } else {
        h[lane] = KIND == 2 ? f_tanh(whole[0]) : f_relu(whole[0]);
      }
    }
    if (step + 1 == layer.steps) memcpy(layer.last + place + row * HIDDEN + unit, h, here * sizeof(float));
  }
}

template <long ROWS>
void advance_rows(const Layer& layer, long direction, long block, long step, long begin, long rows) {
  if (rows == ROWS) return advance<ROWS>(layer, direction, block, step, begin);
  if constexpr (ROWS > 1) advance_rows<ROWS - 1>(layer, direction, block, step, begin, rows);
}

}  // namespace

// out [steps, batch, directions · HIDDEN], last and cell [directions, batch, HIDDEN] of the weights' products with
// given [steps, batch, directions · GATES · HIDDEN], weights [directions, GATES · HIDDEN, HIDDEN], bias [directions,
// GATES · HIDDEN] or null, first and first_cell like last or null. packed: room for the weights, with units by sixteens.
// sizes: steps, batch, directions, and the distances of steps and rows in given and in out.
extern "C" int launch_recurrent(void* out, void* last, void* cell, const void* given, const void* weights, const void* bias,
                                const void* first, const void* first_cell, void* packed, const long long* sizes) {
  const auto read = [](const void* p) { return static_cast<const float*>(p); };
  const auto write = [](void* p) { return static_cast<float*>(p); };
  const Layer layer = {write(out), write(last), write(cell), read(given), read(weights), read(bias), read(first),
                       read(first_cell), write(packed), sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5], sizes[6]};
  // Parts of the batch, as even as they can be.
  const long parts = (layer.batch + MOST_ROWS - 1) / MOST_ROWS, all = layer.directions * BLOCKS;
#pragma omp parallel
  {
#pragma omp for schedule(static)
    for (long at = 0; at < all; ++at) pack(layer, at / BLOCKS, at % BLOCKS);
    for (long step = 0; step < layer.steps; ++step) {
      // The same thread has the same units each time, and waits for the others behind the loop.
#pragma omp for schedule(static)
      for (long at = 0; at < all; ++at)
        for (long part = 0; part < parts; ++part) {
          const long begin = part * layer.batch / parts, end = (part + 1) * layer.batch / parts;
          advance_rows<MOST_ROWS>(layer, at / BLOCKS, at % BLOCKS, step, begin, end - begin);
        }
    }
  }
  return 0;
}
