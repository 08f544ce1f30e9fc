// Scalar functions, conversions and vector accesses that the kernels of this folder share.
// Compute types are float, double, long long, int and bool; 16-bit floats are widened when loaded and rounded when stored.
#pragma once
#include <assert.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>

// Every kernel names all of its indices, whether it needs them or not.
#pragma nv_diag_suppress 177

template <typename T, int N>
struct alignas((sizeof(T) * N < 16) ? sizeof(T) * N : 16) Vec {
  T v[N];
};

template <int N, typename T>
__device__ __forceinline__ Vec<T, N> load_vector(const T* p) {
  return *reinterpret_cast<const Vec<T, N>*>(p);
}
template <int N, typename T>
__device__ __forceinline__ void store_vector(T* p, const Vec<T, N>& x) {
  *reinterpret_cast<Vec<T, N>*>(p) = x;
}

__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ double widen(double x) { return x; }
__device__ __forceinline__ float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float widen(__half x) { return __half2float(x); }
__device__ __forceinline__ long long widen(long long x) { return x; }
__device__ __forceinline__ int widen(int x) { return x; }
__device__ __forceinline__ int widen(short x) { return x; }
__device__ __forceinline__ int widen(signed char x) { return x; }
__device__ __forceinline__ int widen(unsigned char x) { return x; }
__device__ __forceinline__ bool widen(bool x) { return x; }

template <typename T, typename C>
__device__ __forceinline__ T narrow(C x) {
  return static_cast<T>(x);
}
template <>
__device__ __forceinline__ __nv_bfloat16 narrow<__nv_bfloat16, float>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ __forceinline__ __half narrow<__half, float>(float x) {
  return __float2half_rn(x);
}

// Under --use_fast_math expf is the fast intrinsic (about 2 ulp), logf loses all digits around 1, tanhf is accurate to 2^-11
// only, and x / y is 0 or NaN for |y| > 2^126; so logarithms, tanh and quotients have forms of their own. sin and cos reduce
// their argument in double first. Subnormal numbers are 0.
__device__ __forceinline__ float f_exp(float x) { return expf(x); }
__device__ __forceinline__ double f_exp(double x) { return exp(x); }
__device__ __forceinline__ float f_exp2(float x) { return exp2f(x); }
__device__ __forceinline__ double f_exp2(double x) { return exp2(x); }
__device__ __forceinline__ float f_expm1(float x) { return expm1f(x); }
__device__ __forceinline__ double f_expm1(double x) { return expm1(x); }
// x = 2^e · m with m in [√½, √2): returns m - 1 in f and log m - (m - 1).
__device__ __forceinline__ float log_rest(float x, float* e, float* f) {
  const unsigned shifted = __float_as_uint(x) - 0x3f3504f3u;
  *e = static_cast<float>(static_cast<int>(shifted) >> 23);
  *f = __uint_as_float((shifted & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
  const float s = *f * *f;
  float p = 7.0376836292e-2f;
  p = fmaf(p, *f, -1.1514610310e-1f);
  p = fmaf(p, *f, 1.1676998740e-1f);
  p = fmaf(p, *f, -1.2420140846e-1f);
  p = fmaf(p, *f, 1.4249322787e-1f);
  p = fmaf(p, *f, -1.6668057665e-1f);
  p = fmaf(p, *f, 2.0000714765e-1f);
  p = fmaf(p, *f, -2.4999993993e-1f);
  p = fmaf(p, *f, 3.3333331174e-1f);
  return p * *f * s - 0.5f * s;
}
__device__ __forceinline__ float log_ends(float x, float result) {
  result = x == INFINITY ? x : result;
  result = x == 0.0f ? -INFINITY : result;
  return x >= 0.0f ? result : NAN;
}
__device__ __forceinline__ float f_log(float x) {
  float e, f;
  const float rest = log_rest(x, &e, &f);
  return log_ends(x, fmaf(e, 0.693359375f, f + fmaf(e, -2.12194440e-4f, rest)));
}
__device__ __forceinline__ double f_log(double x) { return log(x); }
// Exact for powers of two.
__device__ __forceinline__ float f_log2(float x) {
  float e, f;
  const float rest = log_rest(x, &e, &f);
  return log_ends(x, e + fmaf(f, 1.44269504088896341f, rest * 1.44269504088896341f));
}
__device__ __forceinline__ double f_log2(double x) { return log2(x); }
__device__ __forceinline__ float f_log10(float x) {
  float e, f;
  const float rest = log_rest(x, &e, &f);
  const float tail = fmaf(e, 4.60503898e-6f, fmaf(rest, 0.43429448190325183f, f * 0.43429448190325183f));
  return log_ends(x, fmaf(e, 0.301025390625f, tail));
}
__device__ __forceinline__ double f_log10(double x) { return log10(x); }
__device__ __forceinline__ float f_log1p(float x) { return log1pf(x); }
__device__ __forceinline__ double f_log1p(double x) { return log1p(x); }
__device__ __forceinline__ float f_sqrt(float x) { return sqrtf(x); }
__device__ __forceinline__ double f_sqrt(double x) { return sqrt(x); }
__device__ __forceinline__ float f_rsqrt(float x) { return rsqrtf(x); }
__device__ __forceinline__ double f_rsqrt(double x) { return 1.0 / sqrt(x); }
// Never part of a fused multiply-add.
__device__ __forceinline__ float f_product(float x, float y) { return __fmul_rn(x, y); }
__device__ __forceinline__ float f_reciprocal(float x) { return 1.0f / x; }
__device__ __forceinline__ double f_reciprocal(double x) { return 1.0 / x; }
// Within 2 ulp, without branches.
__device__ __forceinline__ float near_quotient(float x, float y) {
  float q;
  asm("div.full.ftz.f32 %0, %1, %2;" : "=f"(q) : "f"(x), "f"(y));
  return q;
}
// Rounded to nearest where 1 / y is normal, by the remainder of a near quotient (Markstein 1990); __fdiv_rn calls a function.
__device__ __forceinline__ float f_div(float x, float y) {
  const float q = near_quotient(x, y), rest = fmaf(-q, y, x);
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(y));
  const float better = fmaf(rest, inverse, q);
  return better != better || rest == 0.0f ? q : better;
}
__device__ __forceinline__ double near_quotient(double x, double y) { return x / y; }
__device__ __forceinline__ double f_div(double x, double y) { return x / y; }
template <typename T>
__device__ __forceinline__ T f_square(T x) { return x * x; }
__device__ __forceinline__ float f_abs(float x) { return fabsf(x); }
__device__ __forceinline__ double f_abs(double x) { return fabs(x); }
__device__ __forceinline__ int f_abs(int x) { return x < 0 ? -x : x; }
__device__ __forceinline__ long long f_abs(long long x) { return x < 0 ? -x : x; }
template <typename T>
__device__ __forceinline__ T f_sign(T x) { return static_cast<T>((x > T(0)) - (x < T(0))); }
template <typename T>
__device__ __forceinline__ T f_relu(T x) { return (x > T(0) || x != x) ? x : T(0); }
template <typename T>
__device__ __forceinline__ T f_maximum(T x, T y) { return (x > y || x != x) ? x : y; }
template <typename T>
__device__ __forceinline__ T f_minimum(T x, T y) { return (x < y || x != x) ? x : y; }
// The GPU's own instructions hold 0 above -0.
__device__ __forceinline__ float f_maximum(float x, float y) {
  float z;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}
__device__ __forceinline__ float f_minimum(float x, float y) {
  float z;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}
__device__ __forceinline__ double f_maximum(double x, double y) { return x != x || y != y ? NAN : fmax(x, y); }
__device__ __forceinline__ double f_minimum(double x, double y) { return x != x || y != y ? NAN : fmin(x, y); }
// NaN is left out where there is a number.
template <typename T>
__device__ __forceinline__ T f_fmax(T x, T y) { return x >= y ? x : y; }
template <typename T>
__device__ __forceinline__ T f_fmin(T x, T y) { return x <= y ? x : y; }
__device__ __forceinline__ float f_fmax(float x, float y) { return fmaxf(x, y); }
__device__ __forceinline__ float f_fmin(float x, float y) { return fminf(x, y); }
__device__ __forceinline__ double f_fmax(double x, double y) { return fmax(x, y); }
__device__ __forceinline__ double f_fmin(double x, double y) { return fmin(x, y); }
__device__ __forceinline__ float f_sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ __forceinline__ double f_sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }
__device__ __forceinline__ float f_tanh(float x) {
  const float a = fabsf(x), s = x * x;
  const float p = -3.33332819422e-1f + s * (1.33314422036e-1f + s * (-5.37397155531e-2f + s * (2.06390887954e-2f - s * 5.70498872745e-3f)));
  const float small = a + a * s * p, large = 1.0f - 2.0f / (expf(2.0f * a) + 1.0f);
  return copysignf(a < 0.625f ? small : large, x);
}
__device__ __forceinline__ double f_tanh(double x) { return tanh(x); }
__device__ __forceinline__ float f_erf(float x) { return erff(x); }
__device__ __forceinline__ double f_erf(double x) { return erf(x); }
__device__ __forceinline__ float f_erfc(float x) { return erfcf(x); }
__device__ __forceinline__ double f_erfc(double x) { return erfc(x); }
// The angle less the nearest multiple of π/2. Angles from 2^48 on are a whole number times 2^25, 2^51 or 2^77, and the power
// is replaced by its rest modulo 2π, in two parts.
__device__ __forceinline__ float reduced_angle(float x, int* quadrant) {
  double angle = x, rest = 0.0;
  if (fabs(angle) >= 0x1p48) {
    const bool farthest = fabs(angle) >= 0x1p100, farther = fabs(angle) >= 0x1p74;
    const double a = angle * (farthest ? 0x1p-77 : farther ? 0x1p-51 : 0x1p-25);
    const double high = farthest ? 1.4418039957061426 : farther ? 1.038885607650635 : -1.7879377333603939;
    const double low = farthest ? -7.351110135455308e-17 : farther ? 2.7694813252447877e-17 : -7.976019722750976e-18;
    angle = a * high;
    rest = fma(a, low, fma(a, high, -angle));
  }
  const double k = rint(angle * 0.63661977236758134);
  *quadrant = static_cast<int>(static_cast<long long>(k) & 3);
  return static_cast<float>(fma(-k, 6.123233995736766e-17, fma(-k, 1.5707963267948966, angle) + rest));
}
__device__ __forceinline__ float sin_or_cos(float r, bool cosine) {
  const float s = r * r;
  const float sine = r + r * s * (-0.16666654611f + s * (0.00833216087f - s * 0.00019515296f));
  const float cosi = 1.0f + s * (-0.5f + s * (0.04166664568f + s * (-0.00138873162f + s * 0.00002443315f)));
  return cosine ? cosi : sine;
}
__device__ __forceinline__ float f_sin(float x) {
  int q;
  const float r = reduced_angle(x, &q), y = sin_or_cos(r, q & 1);
  return x == 0.0f ? x : (q & 2) ? -y : y;
}
__device__ __forceinline__ double f_sin(double x) { return sin(x); }
__device__ __forceinline__ float f_cos(float x) {
  int q;
  const float r = reduced_angle(x, &q), y = sin_or_cos(r, !(q & 1));
  return ((q + 1) & 2) ? -y : y;
}
__device__ __forceinline__ double f_cos(double x) { return cos(x); }
__device__ __forceinline__ float f_tan(float x) { return f_sin(x) / f_cos(x); }
__device__ __forceinline__ double f_tan(double x) { return tan(x); }
#define BY_LIBRARY(name, single, wide)                                \
  __device__ __forceinline__ float f_##name(float x) { return single(x); } \
  __device__ __forceinline__ double f_##name(double x) { return wide(x); }
BY_LIBRARY(atan, atanf, atan)
BY_LIBRARY(asin, asinf, asin)
BY_LIBRARY(acos, acosf, acos)
BY_LIBRARY(sinh, sinhf, sinh)
BY_LIBRARY(cosh, coshf, cosh)
BY_LIBRARY(asinh, asinhf, asinh)
BY_LIBRARY(acosh, acoshf, acosh)
BY_LIBRARY(atanh, atanhf, atanh)
BY_LIBRARY(floor, floorf, floor)
BY_LIBRARY(ceil, ceilf, ceil)
BY_LIBRARY(trunc, truncf, trunc)
BY_LIBRARY(round, rintf, rint)
BY_LIBRARY(lgamma, lgammaf, lgamma)
BY_LIBRARY(erfinv, erfinvf, erfinv)
BY_LIBRARY(bessel_j0, j0f, j0)
BY_LIBRARY(bessel_j1, j1f, j1)
BY_LIBRARY(bessel_y0, y0f, y0)
BY_LIBRARY(bessel_y1, y1f, y1)
#undef BY_LIBRARY
template <typename T>
__device__ __forceinline__ T f_sinc(T x) {
  const T y = static_cast<T>(3.14159265358979324) * x;
  return y == T(0) ? T(1) : f_sin(y) / y;
}
__device__ __forceinline__ float f_copysign(float x, float y) { return copysignf(x, y); }
__device__ __forceinline__ double f_copysign(double x, double y) { return copysign(x, y); }
__device__ __forceinline__ float f_nextafter(float x, float y) { return nextafterf(x, y); }
__device__ __forceinline__ double f_nextafter(double x, double y) { return nextafter(x, y); }
__device__ __forceinline__ float f_hypot(float x, float y) { return hypotf(x, y); }
__device__ __forceinline__ double f_hypot(double x, double y) { return hypot(x, y); }
__device__ __forceinline__ float f_atan2(float y, float x) { return atan2f(y, x); }
__device__ __forceinline__ double f_atan2(double y, double x) { return atan2(y, x); }
// Of moderate exponents within 7e-7, without arithmetic in double: x = 2^e * m with m around 1, where __log2f errs by 2^-22 at most; y * e in two
// parts, the larger one rounded, not contracted.
__device__ __forceinline__ float f_pow(float x, float y) {
  if (x >= 1.17549435e-38f && x < 1e38f && fabsf(y) <= 1.9f) {
    const int bits = __float_as_int(x), e = (bits - 0x3f3504f3) >> 23;
    const float whole = static_cast<float>(e), near = __fmul_rn(y, whole), n = rintf(near);
    const float rest = fmaf(y, __log2f(__int_as_float(bits - e * (1 << 23))), fmaf(y, whole, -near)) + (near - n);
    const int first = static_cast<int>(n) >> 1, second = static_cast<int>(n) - first;
    return exp2f(rest) * __int_as_float((first + 127) << 23) * __int_as_float((second + 127) << 23);
  }
  return static_cast<float>(pow(static_cast<double>(x), static_cast<double>(y)));
}
__device__ __forceinline__ double f_pow(double x, double y) { return pow(x, y); }
template <typename T>
__device__ __forceinline__ T f_pow(T x, T y) {
  if (y < 0) return x == 1 ? 1 : x == -1 ? ((y & 1) ? -1 : 1) : 0;
  T result = 1;
  for (; y > 0; y >>= 1, x *= x) result = (y & 1) ? result * x : result;
  return result;
}
__device__ __forceinline__ float f_fmod(float x, float y) { return fmodf(x, y); }
__device__ __forceinline__ double f_fmod(double x, double y) { return fmod(x, y); }
template <typename T>
__device__ __forceinline__ T f_quotient(T x, T y) { return x / y; }
template <typename T>
__device__ __forceinline__ T f_fmod(T x, T y) { return x % y; }
__device__ __forceinline__ float f_remainder(float x, float y) {
  const float r = fmodf(x, y);
  return (r != 0.0f && ((r < 0.0f) != (y < 0.0f))) ? r + y : r;
}
__device__ __forceinline__ double f_remainder(double x, double y) {
  const double r = fmod(x, y);
  return (r != 0.0 && ((r < 0.0) != (y < 0.0))) ? r + y : r;
}
template <typename T>
__device__ __forceinline__ T f_remainder(T x, T y) {
  const T r = x % y;
  return (r != 0 && ((r < 0) != (y < 0))) ? r + y : r;
}
// The quotient less its remainder is whole but for rounding: x / y itself may round up to a whole number.
template <typename T>
__device__ __forceinline__ T floor_quotient(T x, T y) {
  if (y == T(0)) return x / y;
  const T r = f_fmod(x, y);
  T q = f_div(x - r, y);
  if (r != T(0) && (r < T(0)) != (y < T(0))) q -= T(1);
  if (q == T(0)) return f_copysign(T(0), f_div(x, y));
  const T whole = f_floor(q);
  return q - whole > T(0.5) ? whole + T(1) : whole;
}
__device__ __forceinline__ float f_floordiv(float x, float y) { return floor_quotient(x, y); }
__device__ __forceinline__ double f_floordiv(double x, double y) { return floor_quotient(x, y); }
template <typename T>
__device__ __forceinline__ T f_floordiv(T x, T y) {
  const T q = x / y;
  return (x % y != 0 && ((x < 0) != (y < 0))) ? q - 1 : q;
}
template <typename T>
__device__ __forceinline__ bool f_signbit(T x) { return signbit(x); }
template <typename T>
__device__ __forceinline__ bool f_isnan(T x) { return isnan(x); }
template <typename T>
__device__ __forceinline__ bool f_isinf(T x) { return isinf(x); }
template <typename T>
__device__ __forceinline__ bool f_isfinite(T x) { return isfinite(x); }
// Indices of a dimension. One that is out of range stops the kernel, as PyTorch's do.
template <typename T>
__device__ __forceinline__ T f_plain_index(T i, T size) {
  assert(i >= 0 && i < size && "the index is in range");
  return i;
}
template <typename T>
__device__ __forceinline__ T f_wrap_index(T i, T size) {
  assert(i >= -size && i < size && "the index is in range");
  return i < 0 ? i + size : i;
}

template <typename T>
__device__ __forceinline__ T f_silu(T x) { return near_quotient(x, T(1) + f_exp(-x)); }
__device__ __forceinline__ float f_gelu(float x) {
  // x·Φ(x), with the normal tail Φ(-|x|) = erfc(t) / 2 = exp(t·p(t)) / 2 for t = |x| / √2: absolute error of Φ below 1e-7, and
  // no cancellation on the negative side.
  const float t = 0.70710678118654752f * fabsf(x);
  float p = 6.945723e-05f;
  p = fmaf(p, t, -0.000319869054f);
  p = fmaf(p, t, -0.00159595627f);
  p = fmaf(p, t, 0.020415118f);
  p = fmaf(p, t, -0.103253849f);
  p = fmaf(p, t, -0.636536896f);
  p = fmaf(p, t, -1.12838387f);
  const float near = 0.5f * f_exp(p * t), tail = t > 4.0f ? 0.0f : near;
  return x * (x < 0.0f ? tail : 1.0f - tail);
}
__device__ __forceinline__ double f_gelu(double x) { return 0.5 * x * (1.0 + erf(x * 0.70710678118654752)); }
template <typename T>
__device__ __forceinline__ T f_gelu_tanh(T x) {
  return T(0.5) * x * (T(1) + f_tanh(T(0.79788456080286536) * (x + T(0.044715) * x * x * x)));
}
template <typename T>
__device__ __forceinline__ T f_softplus(T x, T beta, T threshold) {
  const T s = x * beta;
  return s > threshold ? x : (f_maximum(s, T(0)) + f_log1p(f_exp(-f_abs(s)))) / beta;
}
template <typename T>
__device__ __forceinline__ T f_mish(T x) {
  // tanh(log(1 + e)) = (e² + 2e) / (e² + 2e + 2)
  const T e = f_exp(f_minimum(x, T(20))), n = e * (e + T(2));
  return x > T(20) ? x : x * (n / (n + T(2)));
}
template <typename T>
__device__ __forceinline__ T f_elu(T x, T negative, T positive, T inner) {
  return x > T(0) ? positive * x : negative * f_expm1(inner * x);
}
template <typename T>
__device__ __forceinline__ T f_selu(T x) {
  return f_elu(x, T(1.6732632423543772 * 1.0507009873554805), T(1.0507009873554805), T(1));
}
template <typename T>
__device__ __forceinline__ T f_leaky_relu(T x, T slope) { return x > T(0) ? x : x * slope; }
template <typename T>
__device__ __forceinline__ T f_relu6(T x) { return f_minimum(f_relu(x), T(6)); }
template <typename T>
__device__ __forceinline__ T f_hardsigmoid(T x) { return f_minimum(f_maximum(x + T(3), T(0)), T(6)) * T(1.0 / 6.0); }
template <typename T>
__device__ __forceinline__ T f_hardswish(T x) { return x * f_minimum(f_maximum(x + T(3), T(0)), T(6)) * T(1.0 / 6.0); }
template <typename T>
__device__ __forceinline__ T f_softsign(T x) { return x / (T(1) + f_abs(x)); }
template <typename T>
__device__ __forceinline__ T f_logsigmoid(T x) { return f_minimum(x, T(0)) - f_log1p(f_exp(-f_abs(x))); }
