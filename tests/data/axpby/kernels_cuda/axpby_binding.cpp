#include <torch/types.h>
#include <torch/csrc/utils/pybind.h>

#include <cuda_runtime.h>
#include <c10/cuda/CUDAStream.h>
#include "../binding_registry.h"

extern "C" void axpby_launcher(float* out, const float* x, const float* y, float alpha, float beta, int size,
                               int config, cudaStream_t stream);

torch::Tensor axpby_forward(torch::Tensor x, torch::Tensor y, double alpha, double beta, int config = 0) {
  TORCH_CHECK(x.is_cuda() && y.is_cuda(), "inputs must be on the GPU");
  TORCH_CHECK(x.is_contiguous() && y.is_contiguous() && x.numel() % 4 == 0, "inputs must be contiguous");
  TORCH_CHECK(x.dtype() == torch::kFloat32, "inputs must be float32");
  auto out = torch::empty_like(x);
  cudaStream_t stream = c10::cuda::getCurrentCUDAStream().stream();
  axpby_launcher(out.data_ptr<float>(), x.data_ptr<float>(), y.data_ptr<float>(), alpha, beta, x.numel(), config, stream);
  return out;
}

void register_axpby(pybind11::module& m) {
  m.def("axpby_forward", &axpby_forward, "alpha x + beta y", py::arg("x"), py::arg("y"), py::arg("alpha"),
        py::arg("beta"), py::arg("config") = 0);
}

REGISTER_BINDING(axpby, register_axpby);
