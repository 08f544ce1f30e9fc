  const float* x = input<float>(0);
  for (int64_t plane = 0; plane < dims[0] * dims[1]; ++plane) {
    for (int64_t row = 0; row < dims[2]; ++row) {
      for (int64_t column = 0; column < dims[3]; ++column) {
        float best = -INFINITY;
        for (int64_t i = 2 * row - 1; i < 2 * row + 2; ++i) {
          for (int64_t j = 2 * column - 1; j < 2 * column + 2; ++j) {
            if (i < 0 || i >= 35 || j < 0 || j >= 29) continue;
            const float value = x[(plane * 35 + i) * 29 + j];
            if (value > best || value != value) best = value;
          }
        }
        out[(plane * dims[2] + row) * dims[3] + column] = best;
      }
    }
  }
