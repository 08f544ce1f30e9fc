  const float* x = input<float>(0);
  const float* weight = input<float>(1);
  const float* bias = input<float>(2);
  for (int64_t row = 0; row < dims[0]; ++row) {
    for (int64_t column = 0; column < dims[1]; ++column) {
      double sum = bias[column];
      for (int64_t k = 0; k < dims[2]; ++k) sum += x[row * dims[2] + k] * weight[column * dims[2] + k];
      out[row * dims[1] + column] = 1.0 / (1.0 + std::exp(-sum));
    }
  }
