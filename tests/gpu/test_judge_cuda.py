"""The judge on a GPU: buffers across processes, faults of the device, nothing left behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device, Verdict
from cuda_agent.core.records import Candidate, Task
from cuda_agent.judge.session import JudgeSession
from cuda_agent.workers.buffers import GRANULE, Arena
from judge_specimens import HONEST, TASK, specimen, verified

pytestmark = [pytest.mark.gpu, pytest.mark.integration]


@pytest.fixture(scope="module")
def session() -> Iterator[JudgeSession]:
    with JudgeSession(TASK, JudgeOptions(device=Device.CUDA, call_timeout_s=30.0, seed=3)) as opened:
        opened.admit()
        yield opened


def test_an_arena_is_an_allocation_of_its_own() -> None:
    one, two = Arena("one", 1000, Device.CUDA), Arena("two", 5 << 20, Device.CUDA)
    assert one.nbytes == GRANULE[Device.CUDA]
    assert two.nbytes == 6 << 20
    one.fill(7)
    two.copy_from(one)
    assert bool((two.raw(0, one.nbytes) == 7).all())
    assert one.raw().data_ptr() % GRANULE[Device.CUDA] == 0
    one.close()
    two.close()


def test_an_arena_holds_nothing_of_an_earlier_one() -> None:
    size = 64 << 20
    used = Arena("used", size, Device.CUDA)
    used.fill(7)
    torch.cuda.synchronize()
    used.close()
    fresh = Arena("fresh", size, Device.CUDA)
    assert not bool(fresh.raw().any())
    fresh.close()


def test_an_honest_candidate_is_verified(session: JudgeSession) -> None:
    verdict, reason, report = verified(session, HONEST, trials=5)
    assert verdict == "verified", reason
    assert report is not None and report.oracle == "float64"


def test_a_reduced_sandbox_reaches_the_gpu() -> None:
    options = JudgeOptions(device=Device.CUDA, sandbox="reduced")
    with JudgeSession(TASK, options) as opened:
        opened.admit()
        verdict, reason, _ = verified(opened, HONEST, trials=2)
    assert verdict == "verified", reason


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return self.right(x, y) + 0.1", "incorrect"),
        ("out = torch.empty_like(x)\nout[:32] = self.right(x, y)[:32]\nreturn out", "incorrect"),
        ("out = self.right(x, y)\nx.zero_()\nreturn out", "incorrect"),
        ("return self.right(x, y).cpu()", "wrong_structure"),
        ("return x.copy_(self.right(x, y))", "wrong_structure"),
        ("return torch.empty(1 << 46, device=x.device)", "out_of_memory"),
        ("return x.flatten()[torch.full((64, 256), 1 << 40, device=x.device)]", "crashed"),
        ("while True: pass", "timed_out"),
        ("ctypes.string_at(0)", "crashed"),
    ],
)
def test_each_failure_has_its_verdict_and_the_next_is_right(session: JudgeSession, body: str, expected: str) -> None:
    verdict, reason, _ = verified(session, specimen(body))
    assert verdict == expected, reason
    verdict, reason, _ = verified(session, HONEST)
    assert verdict == "verified", reason


MODEL = """
import torch.nn as nn
import cuda_extension


class ModelNew(nn.Module):
    def forward(self, x, y):
        return cuda_extension.add_relu_forward(x, y, 0)
"""

KERNEL = """
#include <cstdint>
#include <cuda_runtime.h>

__global__ void add_relu(float* out, const float* x, const float* y, int64_t n) {
    const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
    if (i < n) {
        const float v = x[i] * 2 + y[i];
        out[i] = (v > 0 ? v : 0) * 0.5f;
    }
}

extern "C" void add_relu_launcher(float* out, const float* x, const float* y, int64_t n, int config,
                                cudaStream_t stream) {
    add_relu<<<unsigned((n + 255) / 256), 256, 0, stream>>>(out, x, y, n);
}
"""

BINDING = """
#include <torch/types.h>
#include <torch/csrc/utils/pybind.h>
#include <c10/cuda/CUDAStream.h>
#include "../binding_registry.h"

extern "C" void add_relu_launcher(float* out, const float* x, const float* y, int64_t n, int config,
                                cudaStream_t stream);

static torch::Tensor add_relu_forward(torch::Tensor x, torch::Tensor y, int config) {
    auto out = torch::empty_like(x);
    add_relu_launcher(
        out.data_ptr<float>(), x.data_ptr<float>(), y.data_ptr<float>(), x.numel(), config,
        c10::cuda::getCurrentCUDAStream().stream());
    return out;
}

void register_add_relu(pybind11::module& m) { m.def("add_relu_forward", &add_relu_forward); }
REGISTER_BINDING(add_relu, register_add_relu);
"""

PLAIN = Task(
    name="add_relu",
    source="""
import torch, torch.nn as nn
class Model(nn.Module):
    def forward(self, x, y):
        return torch.relu(x * 2 + y) * 0.5
def get_inputs():
    return [torch.randn(4096, 4096), torch.randn(4096, 4096)]
def get_init_inputs():
    return []
""",
)


@pytest.mark.alone
def test_an_honest_kernel_passes_and_nothing_is_left_on_the_gpu() -> None:
    files = {"model_new.py": MODEL, "kernels/add_relu.cu": KERNEL, "kernels/add_relu_binding.cpp": BINDING}
    torch.cuda.init()
    torch.cuda.empty_cache()
    before = torch.cuda.mem_get_info()[0]
    with JudgeSession(PLAIN, JudgeOptions(device=Device.CUDA, timing_budget_s=5.0)) as session:
        session.admit()
        good = session.evaluate(Candidate(files=files))
        bad = session.evaluate(
            Candidate(files={**files, "kernels/add_relu.cu": KERNEL.replace("out[i] =", "out[i + (1ll << 40)] =")})
        )
        again = session.evaluate(Candidate(files=files))
    assert good.verdict is Verdict.PASSED, good.reason + good.log_tail
    assert bad.verdict is Verdict.CRASHED, bad.reason
    assert again.verdict is Verdict.PASSED, again.reason
    torch.cuda.empty_cache()
    assert before - torch.cuda.mem_get_info()[0] < 64 << 20
