"""The single-file form on both devices: the model's text compiles with what is made around it."""

import pytest
import torch
from library_kernels import compile_kernels, graph_of
from torch import nn

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device
from cuda_agent.core.errors import DeviceError, NotCovered
from cuda_agent.core.records import Candidate
from cuda_agent.judge.build.extension import build_extension
from cuda_agent.playbook.single_file import SingleFile

pytestmark = pytest.mark.integration

CPU = """void launch(const uint16_t* x, const bool* out_, const float* norm_weight, uint16_t* out0, int64_t* out1) {
  std::memcpy(out0, x, 2 * 40);
  for (int i = 0; i < 4; ++i) out1[i] = out_[i] ? norm_weight[i] : 0;
}
"""
CUDA = """__global__ void kernel(const __nv_bfloat16* x, __nv_bfloat16* out0) { out0[threadIdx.x] = x[threadIdx.x]; }
void launch(const __nv_bfloat16* x, const bool* out_, const float* norm_weight, __nv_bfloat16* out0, int64_t* out1,
            cudaStream_t stream) {
  kernel<<<1, 40, 0, stream>>>(x, out0);
}
"""


class Named(nn.Module):
    """Names that the form needs itself, several types, and two results."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Module()
        self.norm.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor, out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + 1, torch.where(out, self.norm.weight, 0.0).long()


INPUTS = [torch.zeros(10, 4, dtype=torch.bfloat16), torch.ones(4, dtype=torch.bool)]


def test_the_signature_follows_from_the_graph() -> None:
    form = SingleFile.of(graph_of(Named(), INPUTS), Device.CPU)
    names = [argument.name for argument in form.arguments]
    assert len(set(names)) == 5 and names[0] == "x" and names[3:] == ["out0", "out1"]
    assert form.arguments[0].declaration == "const uint16_t* x"
    assert form.arguments[4].description == "out1: int64 [4]"


def test_a_cpu_kernel_is_built() -> None:
    graph = graph_of(Named(), INPUTS)
    form = SingleFile.of(graph, Device.CPU)
    text = CPU.replace("out_", form.arguments[1].name)
    built = build_extension(Candidate(files=form.candidate(text, graph)), JudgeOptions(device=Device.CPU))
    assert built.library is not None, built.report.log


def test_a_cuda_kernel_compiles(tmp_path) -> None:
    graph = graph_of(Named(), INPUTS)
    form = SingleFile.of(graph, Device.CUDA)
    files = form.candidate(CUDA.replace("out_", form.arguments[1].name), graph)
    source = tmp_path / "kernel.cu"
    source.write_text(files["kernels/kernel.cu"])
    try:
        done = compile_kernels(source, tmp_path / "kernel.o")
    except DeviceError as error:
        pytest.skip(str(error))
    assert done.returncode == 0, done.stderr
    assert "cudaGetLastError" in files["kernels/fused_binding.cpp"]


def test_nested_inputs_have_no_form() -> None:
    class Pair(nn.Module):
        def forward(self, pair: list[torch.Tensor]) -> torch.Tensor:
            return pair[0] + pair[1]

    with pytest.raises(NotCovered, match="nested"):
        SingleFile.of(graph_of(Pair(), [[torch.zeros(3), torch.zeros(3)]]), Device.CPU)
