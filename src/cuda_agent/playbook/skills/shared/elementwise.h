// Scalar functions, conversions and block reductions that the kernels of this folder share, written without branches
// so that the compiler turns loops over them into vector code.
// Compute types are float, double, long long, int and bool; 16-bit floats are widened when loaded and rounded when stored.
#pragma once
#pragma GCC optimize("no-math-errno", "no-trapping-math")
#include <emmintrin.h>
#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

struct bf16 {
  uint16_t bits;
};

INLINE float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }
INLINE uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }

INLINE float widen(float x) { return x; }
INLINE double widen(double x) { return x; }
INLINE float widen(bf16 x) { return float_of(static_cast<uint32_t>(x.bits) << 16); }
INLINE float widen(_Float16 x) { return static_cast<float>(x); }
INLINE long long widen(long long x) { return x; }
INLINE int widen(int x) { return x; }
INLINE int widen(short x) { return x; }
INLINE int widen(signed char x) { return x; }
INLINE int widen(unsigned char x) { return x; }
INLINE bool widen(bool x) { return x; }

template <typename T>
struct Narrow {
  template <typename C>
  INLINE T from(C x) { return static_cast<T>(x); }
};
template <>
struct Narrow<bf16> {
  INLINE bf16 from(float x) {
    const uint32_t u = bits_of(x), rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    return bf16{static_cast<uint16_t>(x != x ? 0x7fc0u : rounded)};
  }
};
template <typename T, typename C>
INLINE T narrow(C x) { return Narrow<T>::from(x); }

INLINE float f_exp(float x) {
  // What is below the least subnormal number is computed at 0, since subnormal results are slow.
  float c = x > 89.0f ? 89.0f : x;
  c = c < -104.0f ? 0.0f : c;
  const float shifted = c * 1.44269504088896341f + 12582912.0f;
  const int n = static_cast<int>(bits_of(shifted) - 0x4b400000u);
  const float k = shifted - 12582912.0f;
  const float r = __builtin_fmaf(k, 2.12194440e-4f, __builtin_fmaf(k, -0.693359375f, c));
  float p = 1.9875691500e-4f;
  p = __builtin_fmaf(p, r, 1.3981999507e-3f);
  p = __builtin_fmaf(p, r, 8.3334519073e-3f);
  p = __builtin_fmaf(p, r, 4.1665795894e-2f);
  p = __builtin_fmaf(p, r, 1.6666665459e-1f);
  p = __builtin_fmaf(p, r, 5.0000001201e-1f);
  p = __builtin_fmaf(p, r * r, r) + 1.0f;
  // 2^n as two factors, since n reaches from -150 to 128.
  const int half = n >> 1;
  p = p * float_of(static_cast<uint32_t>(half + 127) << 23) * float_of(static_cast<uint32_t>(n - half + 127) << 23);
  return x < -104.0f ? 0.0f : p;
}
// x = 2^e · m with m in [√½, √2): returns m - 1 and log m - (m - 1). Subnormal numbers are scaled first.
INLINE float log_rest(float x, float* e, float* f) {
  const float y = x < 1.17549435e-38f ? x * 8388608.0f : x;
  const uint32_t u = bits_of(y), shifted = u - 0x3f3504f3u;
  *e = static_cast<float>(static_cast<int>(shifted) >> 23) - (x < 1.17549435e-38f ? 23.0f : 0.0f);
  *f = float_of((shifted & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
  const float s = *f * *f;
  float p = 7.0376836292e-2f;
  p = __builtin_fmaf(p, *f, -1.1514610310e-1f);
  p = __builtin_fmaf(p, *f, 1.1676998740e-1f);
  p = __builtin_fmaf(p, *f, -1.2420140846e-1f);
  p = __builtin_fmaf(p, *f, 1.4249322787e-1f);
  p = __builtin_fmaf(p, *f, -1.6668057665e-1f);
  p = __builtin_fmaf(p, *f, 2.0000714765e-1f);
  p = __builtin_fmaf(p, *f, -2.4999993993e-1f);
  p = __builtin_fmaf(p, *f, 3.3333331174e-1f);
  return p * *f * s - 0.5f * s;
}
INLINE float log_ends(float x, float result) {
  result = x == INFINITY ? x : result;
  result = x == 0.0f ? -INFINITY : result;
  return x >= 0.0f ? result : NAN;
}
INLINE float f_log(float x) {
  float e, f;
  const float rest = log_rest(x, &e, &f);
  return log_ends(x, __builtin_fmaf(e, 0.693359375f, f + __builtin_fmaf(e, -2.12194440e-4f, rest)));
}
INLINE double f_exp(double x) { return exp(x); }
INLINE double f_log(double x) { return log(x); }
INLINE float f_exp2(float x) { return exp2f(x); }
INLINE double f_exp2(double x) { return exp2(x); }
// Exact for powers of two.
INLINE float f_log2(float x) {
  float e, f;
  const float rest = log_rest(x, &e, &f);
  return log_ends(x, e + __builtin_fmaf(f, 1.44269504088896341f, rest * 1.44269504088896341f));
}
INLINE double f_log2(double x) { return log2(x); }
INLINE float f_log10(float x) {
  float e, f;
  const float rest = log_rest(x, &e, &f);
  const float tail = __builtin_fmaf(e, 4.60503898e-6f, __builtin_fmaf(rest, 0.43429448190325183f, f * 0.43429448190325183f));
  return log_ends(x, __builtin_fmaf(e, 0.301025390625f, tail));
}
INLINE double f_log10(double x) { return log10(x); }
INLINE float f_log1p(float x) {
  const float u = 1.0f + x, corrected = f_log(u) * (x / (u - 1.0f));
  const float y = u == 1.0f ? x : corrected;
  return x == INFINITY ? x : y;
}
INLINE double f_log1p(double x) { return log1p(x); }
INLINE float f_sqrt(float x) { return __builtin_sqrtf(x); }
INLINE float f_rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
INLINE double f_sqrt(double x) { return __builtin_sqrt(x); }
INLINE double f_rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
template <typename T>
INLINE T f_reciprocal(T x) { return T(1) / x; }
template <typename T>
INLINE T f_div(T x, T y) { return x / y; }
template <typename T>
INLINE T f_square(T x) { return x * x; }
INLINE float f_abs(float x) { return __builtin_fabsf(x); }
INLINE double f_abs(double x) { return __builtin_fabs(x); }
INLINE int f_abs(int x) { return x < 0 ? -x : x; }
INLINE long long f_abs(long long x) { return x < 0 ? -x : x; }
template <typename T>
INLINE T f_sign(T x) { return static_cast<T>((x > T(0)) - (x < T(0))); }
template <typename T>
INLINE T f_relu(T x) { return x < T(0) ? T(0) : x; }
template <typename T>
INLINE T f_maximum(T x, T y) {
  const T m = x > y ? x : y;
  return x != x ? x : m;
}
template <typename T>
INLINE T f_minimum(T x, T y) {
  const T m = x < y ? x : y;
  return x != x ? x : m;
}
// NaN is left out where there is a number.
template <typename T>
INLINE T f_fmax(T x, T y) { return (x >= y || y != y) ? x : y; }
template <typename T>
INLINE T f_fmin(T x, T y) { return (x <= y || y != y) ? x : y; }
template <typename T>
INLINE T f_sigmoid(T x) { return T(1) / (T(1) + f_exp(-x)); }
INLINE float f_tanh(float x) {
  const float a = f_abs(x), s = x * x;
  float p = -5.70498872745e-3f;
  p = __builtin_fmaf(p, s, 2.06390887954e-2f);
  p = __builtin_fmaf(p, s, -5.37397155531e-2f);
  p = __builtin_fmaf(p, s, 1.33314422036e-1f);
  p = __builtin_fmaf(p, s, -3.33332819422e-1f);
  const float small = __builtin_fmaf(p * s, a, a), large = 1.0f - 2.0f / (f_exp(2.0f * a) + 1.0f);
  return __builtin_copysignf(a < 0.625f ? small : large, x);
}
INLINE double f_tanh(double x) { return tanh(x); }
INLINE float f_expm1(float x) {
  const float y = f_tanh(0.5f * x) * (f_exp(x) + 1.0f);
  return y;
}
INLINE double f_expm1(double x) { return expm1(x); }
INLINE float f_erf(float x) {
  const float a = f_abs(x), t = a > 4.0f ? 4.0f : a, s = t * t;
  float q = __builtin_fmaf(-1.72853470e-5f, t, 3.83197126e-4f);
  const float u = __builtin_fmaf(-3.88396438e-3f, t, 2.42546219e-2f);
  q = __builtin_fmaf(q, s, u);
  q = __builtin_fmaf(q, t, -1.06777877e-1f);
  q = __builtin_fmaf(q, t, -6.34846687e-1f);
  q = __builtin_fmaf(q, t, -1.28717512e-1f);
  q = __builtin_fmaf(q, t, -t);
  const float large = __builtin_copysignf(1.0f - f_exp(q), x);
  float p = -5.96761703e-4f;
  p = __builtin_fmaf(p, s, 4.99119423e-3f);
  p = __builtin_fmaf(p, s, -2.67681349e-2f);
  p = __builtin_fmaf(p, s, 1.12819925e-1f);
  p = __builtin_fmaf(p, s, -3.76125336e-1f);
  p = __builtin_fmaf(p, s, 1.28379166e-1f);
  const float small = __builtin_fmaf(p, x, x);
  return a > 0.927734375f ? large : small;
}
INLINE double f_erf(double x) { return erf(x); }
INLINE float f_erfc(float x) { return erfcf(x); }
INLINE double f_erfc(double x) { return erfc(x); }
// The angle less the nearest multiple of π/2. Angles from 2^48 on are a whole number times 2^25, 2^51 or 2^77, and the power
// is replaced by its rest modulo 2π, in two parts.
INLINE float reduced_angle(float x, int* quadrant) {
  const double wide = x, size = __builtin_fabs(wide);
  const bool far = size >= 0x1p48, farther = size >= 0x1p74, farthest = size >= 0x1p100;
  const double a = wide * (farthest ? 0x1p-77 : farther ? 0x1p-51 : far ? 0x1p-25 : 1.0);
  const double high = farthest ? 1.4418039957061426 : farther ? 1.038885607650635 : far ? -1.7879377333603939 : 1.0;
  const double low = farthest ? -7.351110135455308e-17 : farther ? 2.7694813252447877e-17 : far ? -7.976019722750976e-18 : 0.0;
  const double angle = a * high, rest = __builtin_fma(a, low, __builtin_fma(a, high, -angle));
  // Adding 1.5 · 2^52 rounds to a whole number, which is then in the last bits.
  const double shifted = angle * 0.63661977236758134 + 6755399441055744.0, k = shifted - 6755399441055744.0;
  *quadrant = static_cast<int>(__builtin_bit_cast(long long, shifted));
  return static_cast<float>(__builtin_fma(-k, 6.123233995736766e-17, __builtin_fma(-k, 1.5707963267948966, angle) + rest));
}
INLINE float sin_or_cos(float r, bool cosine) {
  const float s = r * r;
  const float sine = r + r * s * (-0.16666654611f + s * (0.00833216087f - s * 0.00019515296f));
  const float cosi = 1.0f + s * (-0.5f + s * (0.04166664568f + s * (-0.00138873162f + s * 0.00002443315f)));
  return cosine ? cosi : sine;
}
INLINE float f_sin(float x) {
  int q;
  const float r = reduced_angle(x, &q), y = sin_or_cos(r, (q & 1) != 0);
  return x == 0.0f ? x : (q & 2) ? -y : y;
}
INLINE double f_sin(double x) { return sin(x); }
INLINE float f_cos(float x) {
  int q;
  const float r = reduced_angle(x, &q), y = sin_or_cos(r, (q & 1) == 0);
  return ((q + 1) & 2) ? -y : y;
}
INLINE double f_cos(double x) { return cos(x); }
INLINE float f_tan(float x) { return f_sin(x) / f_cos(x); }
INLINE double f_tan(double x) { return tan(x); }
#define BY_LIBRARY(name, single, wide)             \
  INLINE float f_##name(float x) { return single(x); } \
  INLINE double f_##name(double x) { return wide(x); }
BY_LIBRARY(atan, atanf, atan)
BY_LIBRARY(asin, asinf, asin)
BY_LIBRARY(acos, acosf, acos)
BY_LIBRARY(sinh, sinhf, sinh)
BY_LIBRARY(cosh, coshf, cosh)
BY_LIBRARY(asinh, asinhf, asinh)
BY_LIBRARY(acosh, acoshf, acosh)
BY_LIBRARY(atanh, atanhf, atanh)
BY_LIBRARY(floor, __builtin_floorf, __builtin_floor)
BY_LIBRARY(ceil, __builtin_ceilf, __builtin_ceil)
BY_LIBRARY(trunc, __builtin_truncf, __builtin_trunc)
BY_LIBRARY(round, __builtin_rintf, __builtin_rint)
BY_LIBRARY(bessel_j0, j0f, j0)
BY_LIBRARY(bessel_j1, j1f, j1)
BY_LIBRARY(bessel_y0, y0f, y0)
BY_LIBRARY(bessel_y1, y1f, y1)
#undef BY_LIBRARY
INLINE float f_lgamma(float x) {
  int sign;
  return lgammaf_r(x, &sign);
}
INLINE double f_lgamma(double x) {
  int sign;
  return lgamma_r(x, &sign);
}
// Giles, "Approximating the erfinv function" (2010), then Newton's method.
INLINE double f_erfinv(double x) {
  if (!(x > -1.0 && x < 1.0)) return x == 1.0 ? INFINITY : x == -1.0 ? -INFINITY : static_cast<double>(NAN);
  double w = -log((1.0 - x) * (1.0 + x)), p;
  if (w < 5.0) {
    w -= 2.5;
    p = 2.81022636e-08;
    p = 3.43273939e-07 + p * w;
    p = -3.5233877e-06 + p * w;
    p = -4.39150654e-06 + p * w;
    p = 0.00021858087 + p * w;
    p = -0.00125372503 + p * w;
    p = -0.00417768164 + p * w;
    p = 0.246640727 + p * w;
    p = 1.50140941 + p * w;
  } else {
    w = sqrt(w) - 3.0;
    p = -0.000200214257;
    p = 0.000100950558 + p * w;
    p = 0.00134934322 + p * w;
    p = -0.00367342844 + p * w;
    p = 0.00573950773 + p * w;
    p = -0.0076224613 + p * w;
    p = 0.00943887047 + p * w;
    p = 1.00167406 + p * w;
    p = 2.83297682 + p * w;
  }
  double y = p * x;
  for (int i = 0; i < 2; ++i) y -= (erf(y) - x) * 0.88622692545275801 * exp(y * y);
  return y;
}
INLINE float f_erfinv(float x) { return static_cast<float>(f_erfinv(static_cast<double>(x))); }
template <typename T>
INLINE T f_sinc(T x) {
  const T y = static_cast<T>(3.14159265358979324) * x;
  return y == T(0) ? T(1) : f_sin(y) / y;
}
INLINE float f_copysign(float x, float y) { return __builtin_copysignf(x, y); }
INLINE double f_copysign(double x, double y) { return __builtin_copysign(x, y); }
INLINE float f_nextafter(float x, float y) { return __builtin_nextafterf(x, y); }
INLINE double f_nextafter(double x, double y) { return __builtin_nextafter(x, y); }
// Without the squares, which overflow and underflow.
template <typename T>
INLINE T f_hypot(T x, T y) {
  const T a = f_abs(x), b = f_abs(y), high = a > b ? a : b, low = a > b ? b : a, ratio = low / high;
  const T size = high == T(0) ? low : high * f_sqrt(T(1) + ratio * ratio);
  return (a == T(INFINITY) || b == T(INFINITY)) ? T(INFINITY) : size;
}
INLINE float f_atan2(float y, float x) { return atan2f(y, x); }
INLINE double f_atan2(double y, double x) { return atan2(y, x); }
INLINE float f_pow(float x, float y) { return powf(x, y); }
INLINE double f_pow(double x, double y) { return pow(x, y); }
template <typename T>
INLINE T f_pow(T x, T y) {
  if (y < 0) return x == 1 ? 1 : x == -1 ? ((y & 1) ? -1 : 1) : 0;
  T result = 1;
  for (; y > 0; y >>= 1, x *= x) result = (y & 1) ? result * x : result;
  return result;
}
INLINE float f_fmod(float x, float y) { return fmodf(x, y); }
INLINE double f_fmod(double x, double y) { return fmod(x, y); }
// Quotients of integers: by 0 they are noted, and those of the least integer by -1 wrap around.
template <typename T>
INLINE T divisor(T y) { return (y == 0 || y == -1) ? T(1) : y; }
INLINE int f_quotient(int x, int y) { return y == -1 ? static_cast<int>(0u - static_cast<unsigned>(x)) : x / divisor(y); }
INLINE long long f_quotient(long long x, long long y) {
  return y == -1 ? static_cast<long long>(0ull - static_cast<unsigned long long>(x)) : x / divisor(y);
}
template <typename T>
INLINE T f_fmod(T x, T y) { return x % divisor(y); }
INLINE float f_remainder(float x, float y) {
  const float r = fmodf(x, y);
  return (r != 0.0f && ((r < 0.0f) != (y < 0.0f))) ? r + y : r;
}
INLINE double f_remainder(double x, double y) {
  const double r = fmod(x, y);
  return (r != 0.0 && ((r < 0.0) != (y < 0.0))) ? r + y : r;
}
template <typename T>
INLINE T f_remainder(T x, T y) {
  const T r = x % divisor(y);
  return (r != 0 && ((r < 0) != (y < 0))) ? r + y : r;
}
// The quotient less its remainder is whole but for rounding: x / y itself may round up to a whole number.
template <typename T>
INLINE T floor_quotient(T x, T y) {
  if (y == T(0)) return x / y;
  const T r = f_fmod(x, y);
  T q = (x - r) / y;
  if (r != T(0) && (r < T(0)) != (y < T(0))) q -= T(1);
  if (q == T(0)) return f_copysign(T(0), x / y);
  const T whole = f_floor(q);
  return q - whole > T(0.5) ? whole + T(1) : whole;
}
INLINE float f_floordiv(float x, float y) { return floor_quotient(x, y); }
INLINE double f_floordiv(double x, double y) { return floor_quotient(x, y); }
template <typename T>
INLINE T f_floordiv(T x, T y) {
  const T q = f_quotient(x, y);
  return (x % divisor(y) != 0 && ((x < 0) != (y < 0))) ? q - 1 : q;
}
// The compiler's own fails on vectors.
INLINE bool f_signbit(float x) { return __builtin_bit_cast(int32_t, x) < 0; }
INLINE bool f_signbit(double x) { return __builtin_bit_cast(int64_t, x) < 0; }
template <typename T>
INLINE bool f_isnan(T x) { return x != x; }
template <typename T>
INLINE bool f_isinf(T x) { return f_abs(x) == static_cast<T>(INFINITY); }
template <typename T>
INLINE bool f_isfinite(T x) { return f_abs(x) < static_cast<T>(INFINITY); }
// Indices of a dimension; those that are out of range are noted, and read its start.
template <typename T>
INLINE T f_plain_index(T i, T size) { return (i < 0 || i >= size) ? T(0) : i; }
template <typename T>
INLINE T f_wrap_index(T i, T size) { return f_plain_index(i < 0 ? i + size : i, size); }
template <typename T>
INLINE int f_outside_plain_index(T i, T size) { return i < 0 || i >= size; }
template <typename T>
INLINE int f_outside_wrap_index(T i, T size) { return i < -size || i >= size; }
template <typename T>
INLINE int f_is_zero(T divisor) { return divisor == 0 ? 2 : 0; }

// At the end of a thread's share, what was wrong with values is left for the launcher.
struct Note {
  int* status;
  const int& bad;
  ~Note() {
    if (bad == 0) return;
#pragma omp atomic write
    *status = bad;
  }
};

template <typename T>
INLINE T f_silu(T x) { return x / (T(1) + f_exp(-x)); }
INLINE float f_gelu(float x) {
  // x·Φ(x), with the normal tail Φ(-|x|) = erfc(t) / 2 = exp(t·p(t)) / 2 for t = |x| / √2: absolute error of Φ below 1e-7, and
  // no cancellation on the negative side.
  const float t = 0.70710678118654752f * f_abs(x);
  float p = 6.945723e-05f;
  p = __builtin_fmaf(p, t, -0.000319869054f);
  p = __builtin_fmaf(p, t, -0.00159595627f);
  p = __builtin_fmaf(p, t, 0.020415118f);
  p = __builtin_fmaf(p, t, -0.103253849f);
  p = __builtin_fmaf(p, t, -0.636536896f);
  p = __builtin_fmaf(p, t, -1.12838387f);
  const float near = 0.5f * f_exp(p * t), tail = t > 4.0f ? 0.0f : near;
  return x * (x < 0.0f ? tail : 1.0f - tail);
}
INLINE double f_gelu(double x) { return 0.5 * x * (1.0 + erf(x * 0.70710678118654752)); }
template <typename T>
INLINE T f_gelu_tanh(T x) {
  return T(0.5) * x * (T(1) + f_tanh(T(0.79788456080286536) * (x + T(0.044715) * x * x * x)));
}
template <typename T>
INLINE T f_softplus(T x, T beta, T threshold) {
  const T s = x * beta, y = (f_maximum(s, T(0)) + f_log1p(f_exp(-f_abs(s)))) / beta;
  return s > threshold ? x : y;
}
template <typename T>
INLINE T f_mish(T x) {
  // tanh(log(1 + e)) = (e² + 2e) / (e² + 2e + 2)
  const T e = f_exp(f_minimum(x, T(20))), n = e * (e + T(2)), y = x * (n / (n + T(2)));
  return x > T(20) ? x : y;
}
template <typename T>
INLINE T f_elu(T x, T negative, T positive, T inner) {
  const T below = negative * f_expm1(inner * x), above = positive * x;
  return x > T(0) ? above : below;
}
template <typename T>
INLINE T f_selu(T x) {
  return f_elu(x, T(1.6732632423543772 * 1.0507009873554805), T(1.0507009873554805), T(1));
}
template <typename T>
INLINE T f_leaky_relu(T x, T slope) {
  const T below = x * slope;
  return x > T(0) ? x : below;
}
template <typename T>
INLINE T f_relu6(T x) { return f_minimum(f_relu(x), T(6)); }
template <typename T>
INLINE T f_hardsigmoid(T x) { return f_minimum(f_maximum(x + T(3), T(0)), T(6)) * T(1.0 / 6.0); }
template <typename T>
INLINE T f_hardswish(T x) { return x * f_minimum(f_maximum(x + T(3), T(0)), T(6)) * T(1.0 / 6.0); }
template <typename T>
INLINE T f_softsign(T x) { return x / (T(1) + f_abs(x)); }
template <typename T>
INLINE T f_logsigmoid(T x) { return f_minimum(x, T(0)) - f_log1p(f_exp(-f_abs(x))); }

template <typename T>
INLINE T f_plus(T x, T y) { return x + y; }
template <typename T>
INLINE T f_times(T x, T y) { return x * y; }
INLINE bool f_or(bool x, bool y) { return x || y; }
INLINE bool f_and(bool x, bool y) { return x && y; }

// Writes past the caches: for results that are larger than they are. Both may have any alignment.
INLINE void stream_copy(void* to, const void* from, long bytes) {
  char* d = static_cast<char*>(to);
  const char* s = static_cast<const char*>(from);
  const long head = (64 - (reinterpret_cast<uintptr_t>(d) & 63)) & 63;
  if (head >= bytes) {
    memcpy(d, s, bytes);
    return;
  }
  memcpy(d, s, head);
  long at = head;
  for (; at + 64 <= bytes; at += 64)
    for (long part = at; part < at + 64; part += 16)
      _mm_stream_si128(reinterpret_cast<__m128i*>(d + part), _mm_loadu_si128(reinterpret_cast<const __m128i*>(s + part)));
  memcpy(d + at, s + at, bytes - at);
}
