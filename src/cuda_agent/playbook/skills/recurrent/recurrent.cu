// One layer of a recurrent network over a whole sequence, in one launch.
//
// A warp keeps the rows of the recurrent weights that make one hidden unit in its registers, for all steps. In every step a
// block reads the last states of its batch rows into shared memory; a warp multiplies its rows with eight of them at a time,
// and its lanes make the new states. Blocks that share batch rows and direction wait for each other after each step, others
// don't. Where there are more units than warps, a warp makes several of them and reads their weights in every step.
#include "elementwise.cuh"

// 0 LSTM (gates i, f, g, o), 1 GRU (r, z, n), 2 tanh, 3 ReLU.
#define KIND 0
#define HIDDEN 256

namespace {

constexpr int GATES = KIND == 0 ? 4 : KIND == 1 ? 3 : 1;
// Of a batch row: the sums that are collected. A GRU's fourth is what its last gate gets from the input.
constexpr int SLOTS = GATES == 1 ? 1 : 4;
constexpr int ROWS = 8;
// Four numbers in each of 32 lanes.
constexpr int QUADS = (HIDDEN + 127) / 128;
constexpr int LENGTH = 128 * QUADS;
// Sixteen warps have 128 registers a lane.
constexpr int MOST_WARPS = GATES * QUADS <= 8 ? 16 : 8;
constexpr int MOST_GROUPS = 1024;

// Pointers as in launch_recurrent. `blocks`: of a group; `rows`: batch rows of a group; `held`: of these, states that lie in
// shared memory at a time.
struct Layer {
  float *out, *last, *cell;
  const float *given, *weights, *bias, *first, *first_cell;
  unsigned* arrived;
  long long given_step, given_row, out_step, out_row;
  int steps, batch, directions, blocks, rows, held;
};

__device__ __forceinline__ float4 four(const float* row, int at) {
  float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (HIDDEN % 4 == 0) {
    if (at < HIDDEN) x = __ldcg(reinterpret_cast<const float4*>(row + at));
  } else {
    if (at < HIDDEN) x.x = __ldcg(row + at);
    if (at + 1 < HIDDEN) x.y = __ldcg(row + at + 1);
    if (at + 2 < HIDDEN) x.z = __ldcg(row + at + 2);
    if (at + 3 < HIDDEN) x.w = __ldcg(row + at + 3);
  }
  return x;
}

// Each of the first N sums over all lanes, from lanes `apart` to neighbours; lane l gets number l · N / 32. Recursive: a loop
// whose counts halve isn't unrolled, and the sums would go to memory.
template <int N, int APART = 16, int M>
__device__ __forceinline__ float collected(float (&v)[M], int lane) {
  if constexpr (N > 1) {
    const bool upper = lane & APART;
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      const float mine = upper ? v[i + N / 2] : v[i], theirs = upper ? v[i] : v[i + N / 2];
      v[i] = mine + __shfl_xor_sync(0xffffffffu, theirs, APART);
    }
    return collected<N / 2, APART / 2>(v, lane);
  } else if constexpr (APART > 0) {
    v[0] += __shfl_xor_sync(0xffffffffu, v[0], APART);
    return collected<1, APART / 2>(v, lane);
  } else {
    return v[0];
  }
}

// By one thread: until so many blocks have arrived. What they wrote before can then be read past the first cache.
__device__ __forceinline__ void wait_for(const unsigned* arrived, unsigned wanted) {
  unsigned now;
  do {
    asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(now) : "l"(arrived) : "memory");
  } while (now < wanted);
}

__device__ __forceinline__ void arrive(unsigned* arrived) {
  __threadfence();
  atomicAdd(arrived, 1u);
}

__device__ __forceinline__ void load_weights(float4 (&w)[GATES][QUADS], const Layer& layer, int direction, int unit, int lane) {
#pragma unroll
  for (int gate = 0; gate < GATES; ++gate) {
    const float* row = layer.weights + ((static_cast<long long>(direction) * GATES + gate) * HIDDEN + unit) * HIDDEN;
#pragma unroll
    for (int quad = 0; quad < QUADS; ++quad) w[gate][quad] = four(row, (quad * 32 + lane) * 4);
  }
}

// The new state of a unit, from what the four lanes of a batch row (or each, where there is one gate) collected.
__device__ __forceinline__ float new_state(float sum, float before, float& cell, int lane) {
  if (KIND == 2) return f_tanh(sum);
  if (KIND == 3) return f_relu(sum);
  const int base = lane & ~3;
  const float a = __shfl_sync(0xffffffffu, sum, base), b = __shfl_sync(0xffffffffu, sum, base + 1);
  const float c = __shfl_sync(0xffffffffu, sum, base + 2), d = __shfl_sync(0xffffffffu, sum, base + 3);
  if (KIND == 0) {
    cell = f_sigmoid(b) * cell + f_sigmoid(a) * f_tanh(c);
    return f_sigmoid(d) * f_tanh(cell);
  }
  const float fresh = f_tanh(d + f_sigmoid(a) * c);
  return fresh + f_sigmoid(b) * (before - fresh);
}

template <int WARPS, bool KEPT>
__global__ void __launch_bounds__(WARPS * 32, 1) run_layer(Layer layer) {
  extern __shared__ float4 states[];
  const int lane = threadIdx.x % 32, row_of_lane = lane / 4, slot = SLOTS == 1 ? 0 : lane % 4;
  const int group = blockIdx.x / layer.blocks, direction = group % layer.directions;
  const int begin = group / layer.directions * layer.rows;
  const int end = begin + layer.rows < layer.batch ? begin + layer.rows : layer.batch;
  const int first_unit = blockIdx.x % layer.blocks * WARPS + threadIdx.x / 32;
  // Of the input's part, and of the bias.
  const int gate = KIND == 1 && slot == 3 ? 2 : slot;
  const bool has_given = KIND != 1 || slot != 2, has_bias = KIND != 1 || slot != 3, writes = lane % 4 == 0;
  float4 w[GATES][QUADS];
  if (KEPT && first_unit < HIDDEN) load_weights(w, layer, direction, first_unit, lane);

  for (int step = 0; step < layer.steps; ++step) {
    const long long time = direction ? layer.steps - 1 - step : step, before = direction ? time + 1 : time - 1;
    if (step > 0 && threadIdx.x == 0) wait_for(layer.arrived + group, static_cast<unsigned>(step) * layer.blocks);
    for (int from = begin; from < end; from += layer.held) {
      const int here = end - from < layer.held ? end - from : layer.held;
      // Nobody reads the states before, and the first thread has waited.
      __syncthreads();
      for (int i = threadIdx.x; i < (here + ROWS - 1) / ROWS * ROWS * (LENGTH / 4); i += WARPS * 32) {
        const int row = i / (LENGTH / 4), at = i % (LENGTH / 4) * 4;
        const long long place = static_cast<long long>(direction) * layer.batch + from + row;
        const float* source = step > 0 ? layer.out + before * layer.out_step + (from + row) * layer.out_row + direction * HIDDEN
                              : layer.first ? layer.first + place * HIDDEN : nullptr;
        states[i] = row < here && source ? four(source, at) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      }
      __syncthreads();
      for (int unit = first_unit; unit < HIDDEN; unit += layer.blocks * WARPS) {
        if (!KEPT) load_weights(w, layer, direction, unit, lane);
        const float bias = layer.bias && has_bias ? __ldg(layer.bias + (direction * GATES + gate) * HIDDEN + unit) : 0.0f;
        for (int eight = 0; eight < here; eight += ROWS) {
          const int row = from + eight + row_of_lane;
          const bool live = eight + row_of_lane < here;
          const long long place = (static_cast<long long>(direction) * layer.batch + row) * HIDDEN + unit;
          // Asked for before the products, needed after them.
          float given = 0.0f, cell = 0.0f;
          if (live && has_given)
            given = __ldg(layer.given + time * layer.given_step + row * layer.given_row + (direction * GATES + gate) * HIDDEN + unit);
          if (KIND == 0 && live && writes && (step > 0 || layer.first_cell)) cell = step > 0 ? layer.cell[place] : layer.first_cell[place];
          float sums[ROWS * SLOTS] = {};
#pragma unroll
          for (int quad = 0; quad < QUADS; ++quad) {
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
              const float4 h = states[(eight + r) * (LENGTH / 4) + quad * 32 + lane];
#pragma unroll
              for (int g = 0; g < GATES; ++g) {
                float& sum = sums[r * SLOTS + g];
                sum += w[g][quad].x * h.x;
                sum += w[g][quad].y * h.y;
                sum += w[g][quad].z * h.z;
                sum += w[g][quad].w * h.w;
              }
            }
          }
          const float sum = collected<ROWS * SLOTS>(sums, lane) + given + bias;
          const float* row_before = reinterpret_cast<const float*>(states + (eight + row_of_lane) * (LENGTH / 4));
          const float state = new_state(sum, KIND == 1 ? row_before[unit] : 0.0f, cell, lane);
          if (live && writes) {
            layer.out[time * layer.out_step + row * layer.out_row + direction * HIDDEN + unit] = state;
            if (KIND == 0) layer.cell[place] = cell;
            if (step + 1 == layer.steps) layer.last[place] = state;
          }
        }
      }
    }
    __syncthreads();
    if (threadIdx.x == 0) arrive(layer.arrived + group);
  }
}

template <int WARPS, bool KEPT>
int launch(Layer& layer, int groups, cudaStream_t stream) {
  const auto kernel = run_layer<WARPS, KEPT>;
  const size_t bytes = static_cast<size_t>(layer.held) * LENGTH * sizeof(float);
  cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (status == cudaSuccess) status = cudaMemsetAsync(layer.arrived, 0, groups * sizeof(unsigned), stream);
  void* arguments[] = {&layer};
  // Blocks wait for each other, so all of them must run at a time.
  if (status == cudaSuccess)
    status = cudaLaunchCooperativeKernel(kernel, dim3(groups * layer.blocks), dim3(WARPS * 32), arguments, bytes, stream);
  return static_cast<int>(status);
}

template <int WARPS>
int launch_with(Layer& layer, int processors, int most_bytes, bool halved, cudaStream_t stream) {
  const int wanted = (HIDDEN + WARPS - 1) / WARPS;
  const bool kept = layer.directions * wanted <= processors;
  if constexpr (WARPS != 8)
    if (!kept) return launch_with<8>(layer, processors, most_bytes, halved, stream);
  layer.blocks = kept ? wanted : processors / layer.directions;
  if (layer.blocks == 0) return cudaErrorInvalidConfiguration;
  int parts = processors / (layer.directions * layer.blocks);
  parts = halved ? (parts + 1) / 2 : parts;
  const int most = (layer.batch + ROWS - 1) / ROWS;
  parts = parts < most ? parts : most;
  layer.rows = (most + parts - 1) / parts * ROWS;
  parts = (layer.batch + layer.rows - 1) / layer.rows;
  const int fit = most_bytes / (LENGTH * static_cast<int>(sizeof(float))) / ROWS * ROWS;
  if (fit == 0) return cudaErrorInvalidConfiguration;
  layer.held = layer.rows < fit ? layer.rows : fit;
  const int groups = layer.directions * parts;
  if constexpr (WARPS == 8)
    if (!kept) return launch<WARPS, false>(layer, groups, stream);
  return launch<WARPS, true>(layer, groups, stream);
}

}  // namespace

// out [steps, batch, directions · HIDDEN], last and cell [directions, batch, HIDDEN] of the weights' products with
// given [steps, batch, directions · GATES · HIDDEN], weights [directions, GATES · HIDDEN, HIDDEN], bias [directions,
// GATES · HIDDEN] or null, first and first_cell like last or null. arrived: 1024 numbers. sizes: steps, batch, directions,
// and the distances of steps and rows in given and in out.
extern "C" int launch_recurrent(void* out, void* last, void* cell, const void* given, const void* weights, const void* bias,
                                const void* first, const void* first_cell, void* arrived, const long long* sizes, int config,
                                cudaStream_t stream) {
  const auto read = [](const void* p) { return static_cast<const float*>(p); };
  Layer layer = {static_cast<float*>(out), static_cast<float*>(last), static_cast<float*>(cell), read(given), read(weights),
                 read(bias), read(first), read(first_cell), static_cast<unsigned*>(arrived), sizes[3], sizes[4], sizes[5],
                 sizes[6], static_cast<int>(sizes[0]), static_cast<int>(sizes[1]), static_cast<int>(sizes[2])};
  int device = 0, processors = 0, most_bytes = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  cudaDeviceGetAttribute(&most_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  processors = processors < MOST_GROUPS ? processors : MOST_GROUPS;
  const bool halved = config >= 3;
  if (config % 3 == 1) return launch_with<4>(layer, processors, most_bytes, halved, stream);
  if (config % 3 == 2) return launch_with<MOST_WARPS>(layer, processors, most_bytes, halved, stream);
  return launch_with<8>(layer, processors, most_bytes, halved, stream);
}
