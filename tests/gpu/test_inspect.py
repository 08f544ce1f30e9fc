"""`Inspect` names the right limit of a memory-bound and a compute-bound kernel; `gpu COMMAND` reaches the GPU and Bash
doesn't."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cuda_agent.agent.shell import Shell, open_shell
from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device
from cuda_agent.core.inspection import InspectReport
from cuda_agent.core.records import Candidate, Task
from cuda_agent.judge.session import JudgeSession
from cuda_agent.workspace import layout
from cuda_agent.workspace.inspection import say_inspection

pytestmark = pytest.mark.gpu

STEPS = 256
MODEL = """import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        BODY
        return x


def get_inputs():
    return [torch.rand(SIZE)]


def get_init_inputs():
    return []
"""
KERNEL = """#include <cuda_runtime.h>

__global__ void __launch_bounds__(256) work_kernel(float4* __restrict__ out, const float4* __restrict__ in,
                                                   long long n) {
  long long i = blockIdx.x * 256LL + threadIdx.x;
  if (i >= n) return;
  float4 v = in[i];
#pragma unroll 16
  for (int k = 0; k < STEPS; ++k) {
    v.x = v.x * 0.999f + 0.001f; v.y = v.y * 0.999f + 0.001f; v.z = v.z * 0.999f + 0.001f; v.w = v.w * 0.999f + 0.001f;
  }
  out[i] = v;
}

extern "C" void work_launcher(float* out, const float* in, long long n, int config, cudaStream_t stream) {
  work_kernel<<<(n / 4 + 255) / 256, 256, 0, stream>>>((float4*)out, (const float4*)in, n / 4);
}
"""
BINDING = """#include <torch/types.h>
#include <torch/csrc/utils/pybind.h>
#include <cuda_runtime.h>
#include <c10/cuda/CUDAStream.h>
#include "../binding_registry.h"

extern "C" void work_launcher(float* out, const float* in, long long n, int config, cudaStream_t stream);

static torch::Tensor work(torch::Tensor x) {
  auto out = torch::empty_like(x);
  work_launcher(out.data_ptr<float>(), x.data_ptr<float>(), x.numel(), 0, c10::cuda::getCurrentCUDAStream());
  return out;
}
static void register_work(pybind11::module& m) { m.def("work", &work); }
REGISTER_BINDING(work, register_work);
"""
MODEL_NEW = """import torch
import torch.nn as nn

import cuda_extension


class ModelNew(nn.Module):
    def forward(self, x):
        return cuda_extension.work(x)
"""


def inspected(steps: int, size: int) -> InspectReport:
    body = "\n        ".join(["x = x * 0.999 + 0.001"] * steps)
    task = Task(name="work", source=MODEL.replace("BODY", body).replace("SIZE", str(size)))
    files = {
        "kernels/work.cu": KERNEL.replace("STEPS", str(steps)),
        "kernels/work_binding.cpp": BINDING,
        "model_new.py": MODEL_NEW,
    }
    with JudgeSession(task, JudgeOptions(device=Device.CUDA)) as session:
        report = session.inspect(Candidate(files=files))
    assert isinstance(report, InspectReport)
    sys.stdout.write(say_inspection(report) + "\n")
    return report


def check_parts(report: InspectReport) -> None:
    """What holds of every kernel, with and without Nsight Compute."""
    (code,) = report.code
    assert "work_kernel" in code.name
    assert code.registers is not None and code.registers > 8
    assert (code.spill_store_bytes, code.spill_load_bytes) == (0, 0)
    assert report.roofline is not None
    assert report.roofline.bandwidth_gb_s > 100
    top = report.kernels[0]
    assert "work_kernel" in top.name
    assert top.symbol == code.symbol
    assert top.block == (256, 1, 1)
    assert top.share > 0.9
    assert top.occupancy_percent is not None and 10 < top.occupancy_percent <= 100
    if report.source == "nsight-compute":
        assert top.stalls
        # 16 bytes a thread: 512 a warp's request, in sectors of 32.
        assert top.sectors_per_load == pytest.approx(16, rel=0.05)
    else:
        assert any("stand in" in note for note in report.notes)


@pytest.mark.alone
def test_a_memory_bound_kernel() -> None:
    report = inspected(1, 1 << 27)
    check_parts(report)
    assert report.limit == "memory", report.why
    assert report.memory_share is not None and report.memory_share > 0.6


@pytest.mark.alone
def test_a_compute_bound_kernel() -> None:
    report = inspected(STEPS, 1 << 24)
    check_parts(report)
    assert report.limit == "compute", report.why
    if report.code[0].mix:
        assert report.code[0].mix["float"] > 0.4


@pytest.mark.alone
def test_a_tiny_kernel_is_bound_by_latency() -> None:
    report = inspected(1, 1 << 10)
    assert report.limit == "latency", report.why


def said(shell: Shell, command: str) -> str:
    return shell.wait(shell.start(command, timeout_s=120)).text


def test_the_gpu_is_reached_through_its_command_alone(tmp_path: Path) -> None:
    task = Task(name="t", source=MODEL.replace("BODY", "x = x + 1").replace("SIZE", "8"))
    workspace = layout.create(task, tmp_path / "ws", options=JudgeOptions(device=Device.CUDA))
    code = "import torch; print('gpu' if torch.cuda.is_available() else 'none')"
    (tmp_path / "ws" / "try.py").write_text(code)
    with open_shell(workspace, hidden=()) as shell:
        assert "none" in said(shell, f"{sys.executable} try.py")
        assert "nvidia" not in said(shell, "ls /dev") or shell.level == "reduced"
        assert "gpu" in said(shell, f"gpu {sys.executable} try.py")
        assert shell.gpu_s > 0
