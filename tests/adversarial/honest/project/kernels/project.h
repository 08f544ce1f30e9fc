#pragma once
#include <cstdint>

#include "stream.h"

// out[r][c] = max(sum_k x[r][k] * weight[k][c] + bias[c], 0)
extern "C" void project_launcher(float* out, const float* x, const float* weight, const float* bias, int64_t rows,
                                 int64_t depth, int64_t width, stream_t stream);
