  const float* q = input<float>(0);
  const float* k = input<float>(1);
  const float* v = input<float>(2);
  std::vector<double> score(dims[1]);
  for (int64_t head = 0; head < dims[0]; ++head) {
    for (int64_t row = 0; row < dims[1]; ++row) {
      double largest = -INFINITY;
      for (int64_t key = 0; key <= row; ++key) {
        double sum = 0.0;
        for (int64_t i = 0; i < dims[2]; ++i) sum += q[(head * dims[1] + row) * dims[2] + i] * k[(head * dims[1] + key) * dims[2] + i];
        score[key] = sum * 0.25;
        largest = std::max(largest, score[key]);
      }
      double total = 0.0;
      for (int64_t key = 0; key <= row; ++key) total += score[key] = std::exp(score[key] - largest);
      for (int64_t i = 0; i < dims[2]; ++i) {
        double sum = 0.0;
        for (int64_t key = 0; key <= row; ++key) sum += score[key] * v[(head * dims[1] + key) * dims[2] + i];
        out[(head * dims[1] + row) * dims[2] + i] = sum / total;
      }
    }
  }
