"""The recurrent kernel's own text, its grid run as threads of the host: what it does, where no GPU can run it."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cuda_agent.core.enums import Device
from cuda_agent.playbook.skills.recurrent.skill import CONFIGS, KINDS, kernel, steps_kernel

pytestmark = pytest.mark.integration

HARNESS = Path(__file__).parent.parent / "data" / "grid_on_threads.h"
STEPS, BATCH, WIDTH = 3, 11, 5
GATES = dict(KINDS.values())
#: stands for the one of gemm.cu, of which config 2 alone is available.
PRODUCT = """
extern "C" int launch_gemm(void* d, const void* a, const void* b, const void*, long long m, long long n, long long k,
                           long long batch, long long lda, long long ldb, long long ldd, long long stride_a,
                           long long stride_b, long long stride_d, long long outer, long long, long long, long long,
                           int transpose_a, int transpose_b, int type, int math, int activation, int config, void*) {
  if (outer != 1 || transpose_a || !transpose_b || type || math != 1 || activation || config != 2) return -1;
  for (long long i = 0; i < batch; ++i)
    for (long long row = 0; row < m; ++row)
      for (long long column = 0; column < n; ++column) {
        float sum = 0.0f;
        for (long long at = 0; at < k; ++at)
          sum += static_cast<const float*>(a)[i * stride_a + row * lda + at] *
                 static_cast<const float*>(b)[i * stride_b + column * ldb + at];
        static_cast<float*>(d)[i * stride_d + row * ldd + column] = sum;
      }
  return 0;
}
"""
MODULES = {0: nn.LSTM, 1: nn.GRU, 2: nn.RNN, 3: nn.RNN}


def library(kind: int, hidden: int, folder: Path) -> ctypes.CDLL:
    text = kernel(kind, hidden, Device.CUDA).replace('#include "elementwise.cuh"', f'#include "{HARNESS}"')
    text = text.replace("extern __shared__ float4 states[];", "float4* states = block->memory.data();")
    load = 'asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(now) : "l"(arrived) : "memory");'
    assert load in text
    (folder / "recurrent.cpp").write_text(text.replace(load, "now = acquired(arrived);"))
    made = folder / "recurrent.so"
    command = ["g++", "-std=c++20", "-O1", "-w", "-shared", "-fPIC", str(folder / "recurrent.cpp"), "-lpthread"]
    subprocess.run([*command, "-o", str(made)], check=True)
    return ctypes.CDLL(str(made))


class Layer:
    """One of torch's layers, and what our launchers are given of it."""

    def __init__(self, kind: int, hidden: int, directions: int, batch_first: bool, starts: bool) -> None:
        torch.manual_seed(kind)
        more = {"nonlinearity": "relu"} if kind == 3 else {}
        network = MODULES[kind](WIDTH, hidden, bidirectional=directions == 2, batch_first=batch_first, **more)
        network.requires_grad_(False)
        x, (first, first_cell) = torch.randn(STEPS, BATCH, WIDTH), torch.randn(2, directions, BATCH, hidden)
        x = x.transpose(0, 1).contiguous() if batch_first else x
        start = (first, first_cell) if kind == 0 else first
        truth, end = network(x, start if starts else None)
        self.truth, (self.last, self.cell) = truth.contiguous(), end if kind == 0 else (end, None)
        named, suffixes = dict(network.named_parameters()), ("", "_reverse")[:directions]

        def both(name: str) -> torch.Tensor:
            return torch.cat([named[f"{name}_l0{suffix}"] for suffix in suffixes])

        given = (x @ both("weight_ih").T + both("bias_ih")).contiguous()
        weights, bias = both("weight_hh").contiguous(), both("bias_hh").contiguous()
        self._given = given, weights, bias, *((first, first_cell) if starts else (None, None))
        widths = given.shape[2], truth.shape[2]
        apart = [(width, STEPS * width) if batch_first else (BATCH * width, width) for width in widths]
        self.sizes = (ctypes.c_longlong * 8)(STEPS, BATCH, directions, *apart[0], *apart[1], hidden)

    def run(self, launch: Any, scratch: torch.Tensor, *settings: int) -> int:
        """A launcher's status; where it is 0, its results are compared."""
        found = [torch.full_like(like, float("nan")) for like in (self.truth, self.last, self.last)]
        tensors = [*found, *self._given, scratch]
        pointers = [None if t is None else ctypes.c_void_p(t.data_ptr()) for t in tensors]
        status: int = launch(*pointers, self.sizes, *settings, None)
        for mine, wanted in zip(found, (self.truth, self.last, self.cell), strict=True):
            if status == 0 and wanted is not None:
                torch.testing.assert_close(mine, wanted, rtol=1e-5, atol=1e-6)
        return status


@pytest.mark.parametrize(
    ("kind", "hidden", "directions", "batch_first", "starts", "processors"),
    [
        (0, 9, 2, False, True, (2, 3, 12)),
        (1, 12, 1, True, False, (2, 8)),
        (2, 130, 1, False, True, (2,)),
        (3, 12, 2, True, True, (2, 12)),
    ],
    ids=["LSTM", "GRU", "tanh", "ReLU"],
)
def test_a_layer(
    kind: int,
    hidden: int,
    directions: int,
    batch_first: bool,
    starts: bool,
    processors: tuple[int, ...],
    tmp_path: Path,
) -> None:
    """Settings with as many processors as they want, and with so few that each warp makes several units; rows that are
    read by fours and that aren't."""
    loaded = library(kind, hidden, tmp_path)
    launch = getattr(loaded, f"launch_recurrent_{kind}_{hidden}")
    layer = Layer(kind, hidden, directions, batch_first, starts)
    row_bytes = -(-hidden // 128) * 128 * 4
    ctypes.c_int.in_dll(loaded, "shared_bytes_of_a_block").value = 8 * row_bytes
    for count in processors:
        ctypes.c_int.in_dll(loaded, "processors_of_the_device").value = count
        for config in range(0, CONFIGS, 2) if count == max(processors) else (1,):
            assert layer.run(launch, torch.full((1024,), 7, dtype=torch.int32), config) == 0
    ctypes.c_int.in_dll(loaded, "shared_bytes_of_a_block").value = 8 * row_bytes - 1
    assert layer.run(launch, torch.zeros(1024, dtype=torch.int32), 0) != 0, "less than eight rows"


@pytest.mark.parametrize(("kind", "hidden"), [(0, 9), (1, 12), (2, 130), (3, 31)], ids=["LSTM", "GRU", "tanh", "ReLU"])
@pytest.mark.parametrize("starts", [True, False])
def test_a_layer_step_by_step(kind: int, hidden: int, starts: bool, tmp_path: Path) -> None:
    text = steps_kernel(kind).replace('#include "elementwise.cuh"', f'#include "{HARNESS}"')
    (tmp_path / "steps.cpp").write_text(f"{text}\n{PRODUCT}")
    command = ["g++", "-std=c++20", "-O1", "-w", "-shared", "-fPIC", str(tmp_path / "steps.cpp"), "-lpthread"]
    subprocess.run([*command, "-o", str(tmp_path / "steps.so")], check=True)
    launch = getattr(ctypes.CDLL(str(tmp_path / "steps.so")), f"launch_recurrent_steps_{kind}")
    for directions, batch_first in ((1, True), (2, False), (2, True)):
        layer = Layer(kind, hidden, directions, batch_first, starts)
        sums = torch.full((directions, BATCH, GATES[kind] * hidden), float("nan"))
        assert layer.run(launch, sums, 1, 2) == 0
        assert layer.run(launch, sums, 1, 3) == -1, "what the product returns"


def test_what_threads_of_a_host_cannot_show() -> None:
    """Their memory is ordered anyway."""
    text = kernel(0, 256, Device.CUDA)
    arrive, four = text[text.index("void arrive(") :], text[text.index("float4 four(") :]
    assert arrive.index("__threadfence()") < arrive.index("atomicAdd(")
    assert "__ldcg" in four[: four.index("\n}")] and "ld.acquire.gpu" in text
