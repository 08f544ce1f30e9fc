// Between NCHW and NHWC with padded channels, and the bias and ReLU behind a convolution.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace convolution {

constexpr int kTile = 32;
constexpr int kRows = 8;
constexpr int kNarrow = 8;

template <typename T>
__device__ T finished(T value, const T* bias, int64_t channel, int relu) {
  float x = static_cast<float>(value);
  if (bias) x += static_cast<float>(bias[channel]);
  if (relu && x < 0.0f) x = 0.0f;  // keeps NaN
  return static_cast<T>(x);
}

// x [batch, channels, size] -> y [batch, size, padded]; channels from `channels` on are zero. Few channels: a pixel a thread.
template <typename T>
__global__ void to_nhwc_narrow(const T* __restrict__ x, T* __restrict__ y, int64_t channels, int64_t size, int64_t padded,
                               int64_t batch) {
  const int64_t pixel = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (pixel >= batch * size) return;
  const int64_t image = pixel / size, at = pixel % size;
  alignas(16) T values[kNarrow];
  for (int c = 0; c < kNarrow; ++c)
    values[c] = c < channels ? x[(image * channels + c) * size + at] : static_cast<T>(0.0f);
  T* to = y + pixel * padded;
  if (padded * sizeof(T) % 16 == 0) {
    for (int64_t b = 0; b < padded * int64_t(sizeof(T)) / 16; ++b)
      reinterpret_cast<int4*>(to)[b] = reinterpret_cast<const int4*>(values)[b];
  } else {
    for (int c = 0; c < padded; ++c) to[c] = values[c];
  }
}

// The same through a tile in shared memory. grid: size, padded channels, batch.
template <typename T>
__global__ void to_nhwc_tiled(const T* __restrict__ x, T* __restrict__ y, int64_t channels, int64_t size, int64_t padded,
                              int64_t batch) {
  __shared__ T tile[kTile][kTile + 1];
  const int64_t at = blockIdx.x * int64_t(kTile), channel = blockIdx.y * int64_t(kTile);
  for (int64_t image = blockIdx.z; image < batch; image += gridDim.z) {
    for (int row = threadIdx.y; row < kTile; row += kRows) {
      const int64_t c = channel + row, s = at + threadIdx.x;
      tile[row][threadIdx.x] = c < channels && s < size ? x[(image * channels + c) * size + s] : static_cast<T>(0.0f);
    }
    __syncthreads();
    for (int row = threadIdx.y; row < kTile; row += kRows) {
      const int64_t s = at + row, c = channel + threadIdx.x;
      if (s < size && c < padded) y[(image * size + s) * padded + c] = tile[threadIdx.x][row];
    }
    __syncthreads();
  }
}

// y [batch, size, padded] -> out [batch, channels, size], with bias and ReLU.
template <typename T>
__global__ void to_nchw_tiled(const T* __restrict__ y, T* __restrict__ out, const T* __restrict__ bias, int64_t channels,
                              int64_t size, int64_t padded, int64_t batch, int relu) {
  __shared__ T tile[kTile][kTile + 1];
  const int64_t at = blockIdx.x * int64_t(kTile), channel = blockIdx.y * int64_t(kTile);
  for (int64_t image = blockIdx.z; image < batch; image += gridDim.z) {
    for (int row = threadIdx.y; row < kTile; row += kRows) {
      const int64_t s = at + row, c = channel + threadIdx.x;
      if (s < size && c < channels) tile[row][threadIdx.x] = y[(image * size + s) * padded + c];
    }
    __syncthreads();
    for (int row = threadIdx.y; row < kTile; row += kRows) {
      const int64_t c = channel + row, s = at + threadIdx.x;
      if (c < channels && s < size)
        out[(image * channels + c) * size + s] = finished(tile[threadIdx.x][row], bias, c, relu);
    }
    __syncthreads();
  }
}

// In place on y [planes, size], plane p of channel p % channels. grid: size, planes.
template <typename T>
__global__ void add_tail(T* __restrict__ y, const T* __restrict__ bias, int64_t channels, int64_t size, int64_t planes,
                         int relu) {
  const int64_t at = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (at >= size) return;
  for (int64_t plane = blockIdx.y; plane < planes; plane += gridDim.y)
    y[plane * size + at] = finished(y[plane * size + at], bias, plane % channels, relu);
}

inline unsigned bounded(int64_t count) { return static_cast<unsigned>(count < 65535 ? count : 65535); }

inline unsigned tiles(int64_t count) { return static_cast<unsigned>((count + kTile - 1) / kTile); }

template <typename T>
bool to_nhwc(const void* x, void* y, int64_t channels, int64_t size, int64_t padded, int64_t batch, cudaStream_t stream) {
  const T* from = static_cast<const T*>(x);
  T* to = static_cast<T*>(y);
  if (padded <= kNarrow) {
    const auto blocks = static_cast<unsigned>((batch * size + 255) / 256);
    to_nhwc_narrow<T><<<blocks, 256, 0, stream>>>(from, to, channels, size, padded, batch);
  } else {
    const dim3 grid(tiles(size), tiles(padded), bounded(batch));
    to_nhwc_tiled<T><<<grid, dim3(kTile, kRows), 0, stream>>>(from, to, channels, size, padded, batch);
  }
  return cudaGetLastError() == cudaSuccess;
}

template <typename T>
bool to_nchw(const void* y, void* out, const void* bias, int64_t channels, int64_t size, int64_t padded, int64_t batch,
             int relu, cudaStream_t stream) {
  const dim3 grid(tiles(size), tiles(channels), bounded(batch));
  to_nchw_tiled<T><<<grid, dim3(kTile, kRows), 0, stream>>>(static_cast<const T*>(y), static_cast<T*>(out),
                                                           static_cast<const T*>(bias), channels, size, padded, batch,
                                                           relu);
  return cudaGetLastError() == cudaSuccess;
}

template <typename T>
bool tail(void* y, const void* bias, int64_t channels, int64_t size, int64_t planes, int relu, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((size + 255) / 256), bounded(planes));
  add_tail<T><<<grid, 256, 0, stream>>>(static_cast<T*>(y), static_cast<const T*>(bias), channels, size, planes, relu);
  return cudaGetLastError() == cudaSuccess;
}

}  // namespace convolution
