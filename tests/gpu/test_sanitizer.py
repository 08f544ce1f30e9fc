"""compute-sanitizer itself on a GPU: a write past the end, a race in shared memory, and their honest twin."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device
from cuda_agent.core.errors import DeviceError
from cuda_agent.core.records import Candidate, Task
from cuda_agent.judge.inspection import sanitizer
from cuda_agent.judge.session import JudgeSession


def _has_tool() -> bool:
    try:
        sanitizer.find_sanitizer()
    except DeviceError:
        return False
    return True


pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.skipif(not _has_tool(), reason="no compute-sanitizer"),
]

TASK = Task(
    name="row_sums",
    source="""
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return x.sum(dim=1)
def get_inputs():
    return [torch.rand(1000, 256)]
def get_init_inputs():
    return []
""",
)
MODEL = """
import torch
import cuda_extension
class ModelNew(torch.nn.Module):
    def forward(self, x):
        return cuda_extension.row_sums(x)
"""
BINDING = """
#include <torch/types.h>
#include <torch/csrc/utils/pybind.h>
#include <c10/cuda/CUDAStream.h>

#include "../binding_registry.h"

extern "C" void launch_row_sums(const float* x, float* y, int rows, int columns, int config, cudaStream_t stream);

static torch::Tensor row_sums(const torch::Tensor& x) {
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream().stream();
  torch::Tensor y = torch::empty({x.size(0)}, x.options());
  launch_row_sums(static_cast<const float*>(x.data_ptr()), static_cast<float*>(y.data_ptr()),
                  static_cast<int>(x.size(0)), static_cast<int>(x.size(1)), 0, stream);
  return y;
}

static void register_row_sums(pybind11::module& m) { m.def("row_sums", &row_sums); }

REGISTER_BINDING(row_sums, register_row_sums)
"""
KERNEL = """
#include <cuda_runtime.h>
__global__ void row_sums(const float* x, float* y, int rows, int columns) {
    __shared__ float part[256];
    int row = blockIdx.x, t = threadIdx.x;
    float sum = 0.0f;
    for (int c = t; c < columns; c += 256) sum += x[(long)row * columns + c];
    part[t] = sum;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if (t < half) part[t] += part[t + half];
        BARRIER
    }
    if (t == 0) y[row] = part[0];
    EXTRA
}
extern "C" void launch_row_sums(const float* x, float* y, int rows, int columns, int config, cudaStream_t stream) {
    row_sums<<<rows, 256, 0, stream>>>(x, y, rows, columns);
}
"""


def candidate(barrier: str = "__syncthreads();", extra: str = "") -> Candidate:
    kernel = KERNEL.replace("BARRIER", barrier).replace("EXTRA", extra)
    return Candidate(
        files={"model_new.py": MODEL, "kernels/row_sums.cu": kernel, "kernels/row_sums_binding.cpp": BINDING}
    )


@pytest.fixture(scope="module")
def session() -> Iterator[JudgeSession]:
    with JudgeSession(TASK, JudgeOptions(device=Device.CUDA)) as found:
        yield found


def findings(session: JudgeSession, candidate: Candidate) -> dict[str, list[str]]:
    built = session.built(candidate)
    assert built.library is not None, built.report.log
    return {
        tool: [v.detail for v in sanitizer.run_tool(session, candidate, built.library, tool)]
        for tool in sanitizer.TOOLS
    }


def test_a_clean_kernel(session: JudgeSession) -> None:
    assert findings(session, candidate()) == {"memcheck": [], "racecheck": []}


def test_a_write_past_the_end(session: JudgeSession) -> None:
    found = findings(session, candidate(extra="if (row == rows - 1 && t == 0) y[rows + 40] = 0.0f;"))
    assert found["memcheck"] and "Invalid __global__ write" in found["memcheck"][0], found


def test_a_race_in_shared_memory(session: JudgeSession) -> None:
    found = findings(session, candidate(barrier=""))
    assert found["racecheck"] and "Race reported" in found["racecheck"][0], found
    assert found["memcheck"] == []
