"""The promotion gate on a GPU, with every gate at its default but for time: a good kernel, a racy one, one in half
precision, and one that is no faster than another agent's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device
from cuda_agent.core.errors import DeviceError
from cuda_agent.core.records import Candidate, Task
from cuda_agent.judge.inspection import sanitizer
from cuda_agent.release.gate import GateOptions, SpeedGate, VerificationGate
from cuda_agent.release.lock import read_lock
from cuda_agent.release.promote import promote
from cuda_agent.release.records import GateResult
from cuda_agent.release.subject import load_subject
from cuda_agent.workspace import layout

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

TASK = Task(
    name="centred_rows",
    source="""
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x - x.mean(dim=1, keepdim=True)) * x
def get_inputs():
    return [torch.randn(16384, 1024)]
def get_init_inputs():
    return []
""",
)
MODEL = """
import torch
import cuda_extension
class ModelNew(torch.nn.Module):
    def forward(self, x):
        return cuda_extension.centred_rows(x)
"""
BINDING = """
#include <torch/types.h>
#include <torch/csrc/utils/pybind.h>
#include <c10/cuda/CUDAStream.h>

#include "../binding_registry.h"

extern "C" void launch_centred_rows(const float* x, float* y, int rows, int columns, cudaStream_t stream);

static torch::Tensor centred_rows(const torch::Tensor& x) {
  torch::Tensor y = torch::empty_like(x);
  launch_centred_rows(static_cast<const float*>(x.data_ptr()), static_cast<float*>(y.data_ptr()),
                      static_cast<int>(x.size(0)), static_cast<int>(x.size(1)),
                      c10::cuda::getCurrentCUDAStream().stream());
  return y;
}

static void register_centred_rows(pybind11::module& m) { m.def("centred_rows", &centred_rows); }

REGISTER_BINDING(centred_rows, register_centred_rows)
"""
#: one row of 1,024 elements a block, four elements a thread.
KERNEL = """
#include <cuda_runtime.h>
__global__ void centred_rows(const float* x, float* y, int columns) {
    __shared__ float part[256];
    const int t = threadIdx.x;
    const float4 mine = reinterpret_cast<const float4*>(x + (long)blockIdx.x * columns)[t];
    part[t] = mine.x + mine.y + mine.z + mine.w;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if (t < half) part[t] += part[t + half];
        BARRIER
    }
    const float mean = part[0] / columns;
    float4 out;
    out.x = fmaxf(mine.x - mean, 0.0f) * mine.x;
    out.y = fmaxf(mine.y - mean, 0.0f) * mine.y;
    out.z = fmaxf(mine.z - mean, 0.0f) * mine.z;
    out.w = fmaxf(mine.w - mean, 0.0f) * mine.w;
    AGAIN
    reinterpret_cast<float4*>(y + (long)blockIdx.x * columns)[t] = out;
}
extern "C" void launch_centred_rows(const float* x, float* y, int rows, int columns, cudaStream_t stream) {
    centred_rows<<<rows, 256, 0, stream>>>(x, y, columns);
}
"""
HALF = "out.x = __half2float(__float2half(out.x)); out.y = __half2float(__float2half(out.y));"


def candidate(barrier: str = "__syncthreads();", again: str = "") -> Candidate:
    kernel = KERNEL.replace("BARRIER", barrier).replace("AGAIN", again)
    if "__half" in again:
        kernel = "#include <cuda_fp16.h>" + kernel
    files = {"model_new.py": MODEL, "kernels/centred_rows.cu": kernel, "kernels/centred_rows_binding.cpp": BINDING}
    return Candidate(files=files)


def examined(folder: Path, of: Candidate, **changes: object) -> tuple[bool, dict[str, GateResult]]:
    """Whether it would be promoted, and each gate."""
    opened = layout.create(TASK, folder / "workspace", options=JudgeOptions(device=Device.CUDA))
    opened.restore(of)
    read_lock().save(folder / "stack.lock")
    gate = GateOptions.model_validate({"lock": folder / "stack.lock", "sandbox": "any", **changes})
    rivals = {"theirs": candidate()} if gate.speed.kernels else {}
    subject = load_subject(folder / "workspace")
    promotion = promote(subject, gate, rivals, folder / "kept", lambda phase, text: None).promotion
    return promotion.passed, {one.name: one for one in promotion.gates}


def failing(found: dict[str, GateResult]) -> list[str]:
    return [name for name, one in found.items() if one.status == "failed"]


QUICK = {"verification": VerificationGate(trials=3), "speed": SpeedGate(timing_budget_s=3.0)}


@pytest.mark.alone
def test_a_good_kernel_passes_every_gate(tmp_path: Path) -> None:
    """Against eager, compile, the matched form and max-autotune; other numbers of rows, 10,000 times the scale."""
    passed, found = examined(tmp_path, candidate(), speed=SpeedGate(margin=0.8, timing_budget_s=3.0))
    assert passed, [found[name].reason for name in failing(found)]
    assert {row["baseline"] for row in found["speed"].data["table"]} >= {"eager", "compile", "autotune_tf32"}
    assert "right at a batch of 1, 16385" in found["shapes"].reason
    assert found["sanitize"].status == found["roofline"].status == "passed"


def test_a_race_fails_the_sanitizer_s_gate(tmp_path: Path) -> None:
    """Whether its answers happen to be right or not."""
    try:
        sanitizer.find_sanitizer()
    except DeviceError:
        pytest.skip("no compute-sanitizer")
    _, found = examined(tmp_path, candidate(barrier=""), lock=None, **QUICK)
    assert found["sanitize"].status == "failed" and "racecheck" in found["sanitize"].reason, found


def test_half_precision_fails_its_own_gate(tmp_path: Path) -> None:
    _, found = examined(tmp_path, candidate(again=HALF), **QUICK)
    assert failing(found) == ["precision"], found


@pytest.mark.alone
def test_a_kernel_that_is_no_faster_than_another_agent_s(tmp_path: Path) -> None:
    speed = SpeedGate(timing_budget_s=3.0, baselines=("eager",), kernels={"theirs": Path()})
    checked = VerificationGate(trials=3, sanitize="none", shapes="none")
    _, found = examined(tmp_path, candidate(), speed=speed, verification=checked)
    assert failing(found) == ["speed"] and "over theirs" in found["speed"].reason, found
