  const float* x = input<float>(0);
  for (int64_t row = 0; row < dims[0]; ++row) {
    const float* mine = x + row * dims[1];
    float largest = mine[0];
    for (int64_t i = 1; i < dims[1]; ++i) largest = std::max(largest, mine[i]);
    double sum = 0.0;
    for (int64_t i = 0; i < dims[1]; ++i) sum += std::exp(mine[i] - largest);
    for (int64_t i = 0; i < dims[1]; ++i) out[row * dims[1] + i] = std::exp(mine[i] - largest) / sum;
  }
