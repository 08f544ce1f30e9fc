// The new states of one step of a recurrent layer, from the products with its input and with the last states.
#include "elementwise.h"

namespace {

// Gates of a row: products with the input and with the last state, and the latter's bias.
struct Gates {
  const float *given, *state, *bias;
  long hidden;
  float of(int gate, long unit) const { return given[gate * hidden + unit] + in_state(gate, unit); }
  float in_state(int gate, long unit) const {
    return state[gate * hidden + unit] + (bias ? bias[gate * hidden + unit] : 0.0f);
  }
};

}  // namespace

// out [batch, hidden] and `given`, the input's products, with rows so far apart; gates [batch, count · hidden]: the last
// states' products; cell, last and cell_before [batch, hidden]. null: `last` isn't wanted, `before` (the last states) and
// `cell_before` are zero. kind: 0 LSTM (gates i, f, g, o), 1 GRU (r, z, n), 2 tanh, 3 ReLU.
extern "C" void launch_recurrent_cell(int kind, float* out, float* cell, float* last, const float* gates, const float* given,
                                      const float* bias, const float* before, const float* cell_before, long batch,
                                      long hidden, long out_row, long given_row, long before_row) {
  const long count = kind == 0 ? 4 : kind == 1 ? 3 : 1;
#pragma omp parallel for if (batch * hidden > 4096)
  for (long row = 0; row < batch; ++row) {
    const Gates at = {given + row * given_row, gates + row * count * hidden, bias, hidden};
    float* h = out + row * out_row;
    if (kind == 0) {
      float* c = cell + row * hidden;
      const float* old = cell_before ? cell_before + row * hidden : nullptr;
#pragma omp simd
      for (long u = 0; u < hidden; ++u) {
        c[u] = f_sigmoid(at.of(1, u)) * (old ? old[u] : 0.0f) + f_sigmoid(at.of(0, u)) * f_tanh(at.of(2, u));
        h[u] = f_sigmoid(at.of(3, u)) * f_tanh(c[u]);
      }
    } else if (kind == 1) {
      const float* old = before ? before + row * before_row : nullptr;
#pragma omp simd
      for (long u = 0; u < hidden; ++u) {
        const float fresh = f_tanh(at.given[2 * hidden + u] + f_sigmoid(at.of(0, u)) * at.in_state(2, u));
        h[u] = fresh + f_sigmoid(at.of(1, u)) * ((old ? old[u] : 0.0f) - fresh);
      }
    } else {
#pragma omp simd
      for (long u = 0; u < hidden; ++u) h[u] = kind == 2 ? f_tanh(at.of(0, u)) : f_relu(at.of(0, u));
    }
    if (last) memcpy(last + row * hidden, h, hidden * sizeof(float));
  }
}
