  const int64_t* tokens = input<int64_t>(0);
  const float* table = input<float>(1);
  const float* places = input<float>(2);
  for (int64_t i = 0; i < dims[0]; ++i) {
    for (int64_t j = 0; j < dims[1]; ++j) {
      const int64_t token = tokens[i * dims[1] + j];
      for (int64_t k = 0; k < dims[2]; ++k) {
        out[(i * dims[1] + j) * dims[2] + k] = table[token * dims[2] + k] * 3.0f + places[j * dims[2] + k];
      }
    }
  }
