// What one output's comparison needs to know of a block of elements (judge/compare.py: `_Sums.piece`), in one pass over
// it. For nvcc and for any C++ compiler.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define ONEPASS_FUNCTION __host__ __device__ inline
#else
#define ONEPASS_FUNCTION inline
#endif

namespace onepass {

constexpr int kBlock = 4096;
// Of a block: sums of squares of the oracle and of the candidate's and the policy's difference from it; the largest
// |candidate - oracle| beyond the published bound, |policy - oracle|, |candidate - eager|, and that over |eager|.
constexpr int kNumbers = 7;

struct Half { std::uint16_t bits; };
struct Bfloat { std::uint16_t bits; };

ONEPASS_FUNCTION float from_bits(std::uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
ONEPASS_FUNCTION float wide(float value) { return value; }
ONEPASS_FUNCTION double wide(double value) { return value; }
// Narrow types are compared in double, as torch's passes do.
ONEPASS_FUNCTION double wide(Bfloat value) { return from_bits(std::uint32_t(value.bits) << 16); }
ONEPASS_FUNCTION double wide(Half value) {
    const std::uint32_t sign = std::uint32_t(value.bits & 0x8000u) << 16, exponent = (value.bits >> 10) & 31u;
    const std::uint32_t fraction = value.bits & 0x3ffu;
    if (exponent == 31) return from_bits(sign | 0x7f800000u | (fraction << 13));
    if (exponent != 0) return from_bits(sign | ((exponent + 112u) << 23) | (fraction << 13));
    const double magnitude = fraction * (1.0 / 16777216.0);
    return sign ? -magnitude : magnitude;
}

struct Bounds {
    double atol, rtol, least;  // `least`: |eager| counts as no smaller where a relative error is taken
};

struct Sums {
    double numbers[kNumbers] = {};

    template <class T>
    ONEPASS_FUNCTION void add(T candidate, T eager, T policy, double oracle, const Bounds& bounds) {
        const auto c = wide(candidate), e = wide(eager);
        using Wide = decltype(wide(candidate));
        const double from_truth = double(c) - oracle, eager_off = double(wide(policy)) - oracle;
        const Wide apart = std::fabs(c - e), size = std::fabs(e);
        const bool outside = apart - Wide(bounds.rtol) * size > Wide(bounds.atol);
        const Wide divisor = size > Wide(bounds.least) ? size : Wide(bounds.least);
        numbers[0] += oracle * oracle;
        numbers[1] += from_truth * from_truth;
        numbers[2] += eager_off * eager_off;
        keep(3, outside ? std::fabs(from_truth) : 0.0);
        keep(4, std::fabs(eager_off));
        keep(5, apart);
        keep(6, apart / divisor);
        // The largest of a NaN and a number is the number.
        if (!(std::isfinite(from_truth) && std::isfinite(eager_off) && std::isfinite(apart))) numbers[0] = NAN;
    }
    ONEPASS_FUNCTION void keep(int index, double value) { numbers[index] = std::fmax(numbers[index], value); }
    ONEPASS_FUNCTION void join(const Sums& other) {
        for (int i = 0; i < 3; ++i) numbers[i] += other.numbers[i];
        for (int i = 3; i < kNumbers; ++i) keep(i, other.numbers[i]);
    }
};

}  // namespace onepass
