  const float* x = input<float>(0);
  const float* weight = input<float>(1);
  const float* bias = input<float>(2);
  for (int64_t row = 0; row < dims[0]; ++row) {
    const float* mine = x + row * dims[1];
    double mean = 0.0;
    for (int64_t i = 0; i < dims[1]; ++i) mean += mine[i];
    mean = mean / dims[1];
    double square = 0.0;
    for (int64_t i = 0; i < dims[1]; ++i) square += (mine[i] - mean) * (mine[i] - mean);
    const double factor = 1.0 / std::sqrt(square / dims[1] + 1e-5);
    for (int64_t i = 0; i < dims[1]; ++i) {
      out[row * dims[1] + i] = (mine[i] - mean) * factor * weight[i] + bias[i];
    }
  }
