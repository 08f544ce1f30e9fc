  const float* x = input<float>(0);
  const float* y = input<float>(1);
  const float* scale = input<float>(2);
  for (int64_t row = 0; row < dims[0]; ++row) {
    for (int64_t i = 0; i < dims[1]; ++i) {
      const float value = x[row * dims[1] + i] * scale[i] + y[row * dims[1] + i];
      out[row * dims[1] + i] = std::max(value, 0.0f);
    }
  }
