#include <torch/types.h>
#include <torch/csrc/utils/pybind.h>

#include "../binding_registry.h"
#include "add_bias.h"
#ifndef CUDA_AGENT_DEVICE_CUDA
#include <ATen/ops/mm.h>
#endif

static torch::Tensor project(torch::Tensor x, torch::Tensor weight, torch::Tensor bias) {
  TORCH_CHECK(x.is_contiguous() && weight.is_contiguous(), "contiguous tensors are needed");
  auto out = torch::empty({x.size(0), weight.size(1)}, x.options());
#ifdef CUDA_AGENT_DEVICE_CUDA
  vendor_product(out.data_ptr<float>(), x.data_ptr<float>(), weight.data_ptr<float>(), x.size(0), x.size(1),
                 weight.size(1), CURRENT_STREAM);
#else
  at::mm_out(out, x, weight);
#endif
  add_bias_launcher(out.data_ptr<float>(), bias.data_ptr<float>(), x.size(0), weight.size(1), CURRENT_STREAM);
  return out;
}

static void register_project(pybind11::module& m) { m.def("project", &project); }
REGISTER_BINDING(project, register_project);
