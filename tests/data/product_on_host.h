// Stands for product.cuh where no GPU can run it: the product on the host, element by element, then the kernel's own epilogue.
#pragma once
#include <algorithm>
#include <initializer_list>

#include "elementwise.h"

#define __device__
#define __forceinline__ inline
using __nv_bfloat16 = bf16;
using __half = _Float16;
using cudaStream_t = void*;

template <typename T, int N>
struct Vec {
  T v[N];
};
template <int N, typename T>
Vec<T, N> load_vector(const T* p) {
  if (reinterpret_cast<uintptr_t>(p) % std::min<size_t>(16, sizeof(T) * N)) abort();
  Vec<T, N> x;
  memcpy(&x, p, sizeof x);
  return x;
}
template <int N, typename T>
void store_vector(T* p, const Vec<T, N>& x) {
  if (reinterpret_cast<uintptr_t>(p) % std::min<size_t>(16, sizeof(T) * N)) abort();
  memcpy(p, &x, sizeof x);
}
template <int BYTES>
struct Words {
  uint32_t words[BYTES / 4];
};
template <typename T, int N>
Words<int(sizeof(T)) * N> packed(const Vec<T, N>& x) {
  Words<int(sizeof(T)) * N> w;
  memcpy(&w, &x, sizeof w);
  return w;
}
template <typename T, int N>
Vec<T, N> unpacked(const Words<int(sizeof(T)) * N>& w) {
  Vec<T, N> x;
  memcpy(&x, &w, sizeof x);
  return x;
}

constexpr int kNotAvailable = -1;
struct Operands {
  const void *a, *b;
  long long k, lda, ldb;
};
template <int, int, int, int, int, int, bool>
struct Tiling {};

inline bool is_aligned(std::initializer_list<const void*> pointers) {
  return std::all_of(pointers.begin(), pointers.end(), [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; });
}

template <typename T, typename C, typename E>
int launch(const Operands& x, const E& epilogue, cudaStream_t) {
  const T *a = static_cast<const T*>(x.a), *b = static_cast<const T*>(x.b);
  for (int row = 0; row < E::M; ++row)
    for (int col = 0; col < E::N; col += 8) {
      float v[8] = {};
      for (int j = 0; j < 8; ++j)
        for (int k = 0; k < x.k; ++k) v[j] += widen(a[row * x.lda + k]) * widen(b[(col + j) * x.ldb + k]);
      typename E::Column column;
      typename E::Item item;
      epilogue.column(column, col);
      epilogue.item(item, row, col);
      epilogue.finish(v, column, item, row, col);
    }
  return 0;
}
