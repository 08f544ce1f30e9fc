#pragma once
#if __has_include(<bit>)
#include <bit>
#endif
#include "../stream.h"
// Rows that one thread takes at a time.
constexpr int GRAIN = 8;
