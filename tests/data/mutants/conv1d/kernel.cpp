  const float* x = input<float>(0);
  const float* weight = input<float>(1);
  const float* bias = input<float>(2);
  for (int64_t image = 0; image < dims[0]; ++image) {
    for (int64_t filter = 0; filter < dims[1]; ++filter) {
      for (int64_t at = 0; at < dims[2]; ++at) {
        double sum = bias[filter];
        for (int64_t channel = 0; channel < dims[3]; ++channel) {
          for (int64_t k = 0; k < 3; ++k) {
            const int64_t from = at + k - 1;
            if (from < 0 || from >= dims[2]) continue;
            sum += x[(image * dims[3] + channel) * dims[2] + from] * weight[(filter * dims[3] + channel) * 3 + k];
          }
        }
        out[(image * dims[1] + filter) * dims[2] + at] = sum;
      }
    }
  }
