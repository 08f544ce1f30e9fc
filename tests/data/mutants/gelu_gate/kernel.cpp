  const float* x = input<float>(0);
  for (int64_t row = 0; row < dims[0]; ++row) {
    for (int64_t i = 0; i < dims[1]; ++i) {
      const double value = x[row * 2 * dims[1] + i];
      const double gate = x[row * 2 * dims[1] + dims[1] + i];
      out[row * dims[1] + i] = value * gate * 0.5 * (1.0 + std::erf(gate * 0.7071067811865476));
    }
  }
