#include <torch/types.h>
#include <torch/csrc/utils/pybind.h>

#include "../binding_registry.h"

extern "C" void axpby_launcher(float* out, const float* x, const float* y, float alpha, float beta, int64_t size,
                               int config);

torch::Tensor axpby_forward(torch::Tensor x, torch::Tensor y, double alpha, double beta, int config = 0) {
  TORCH_CHECK(x.is_contiguous() && y.is_contiguous() && x.dtype() == torch::kFloat32, "contiguous float32 needed");
  auto out = torch::empty_like(x);
  axpby_launcher(out.data_ptr<float>(), x.data_ptr<float>(), y.data_ptr<float>(), alpha, beta, x.numel(), config);
  return out;
}

void register_axpby(pybind11::module& m) {
  m.def("axpby_forward", &axpby_forward, py::arg("x"), py::arg("y"), py::arg("alpha"), py::arg("beta"),
        py::arg("config") = 0);
}

REGISTER_BINDING(axpby, register_axpby);
