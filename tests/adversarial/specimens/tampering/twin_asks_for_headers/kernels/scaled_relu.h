#pragma once
#include <cstdint>

#include "part/grain.h"
#include "part/../stream.h"

// out[r][c] = max(x[r][c] * scale[c] + y[r][c], 0)
extern "C" void scaled_relu_launcher(float* out, const float* x, const float* y, const float* scale, int64_t rows,
                                     int64_t width, stream_t stream);
