"""The recurrent kernel's own text, its grid run as threads of the host: what it does, where no GPU can run it."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn

from cuda_agent.core.enums import Device
from cuda_agent.playbook.skills.recurrent.skill import CONFIGS, KINDS, kernel

pytestmark = pytest.mark.integration

HARNESS = Path(__file__).parent.parent / "data" / "grid_on_threads.h"
HIDDEN, STEPS, BATCH, WIDTH = 9, 3, 11, 5
MODULES = {0: nn.LSTM, 1: nn.GRU, 2: nn.RNN, 3: nn.RNN}


def library(kind: int, folder: Path) -> ctypes.CDLL:
    text = kernel(kind, HIDDEN, Device.CUDA).replace('#include "elementwise.cuh"', f'#include "{HARNESS}"')
    text = text.replace("extern __shared__ float4 states[];", "float4* states = block->memory.data();")
    load = 'asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(now) : "l"(arrived) : "memory");'
    assert load in text
    (folder / "recurrent.cpp").write_text(text.replace(load, "now = acquired(arrived);"))
    made = folder / "recurrent.so"
    command = ["g++", "-std=c++20", "-O1", "-w", "-shared", "-fPIC", str(folder / "recurrent.cpp"), "-lpthread"]
    subprocess.run([*command, "-o", str(made)], check=True)
    return ctypes.CDLL(str(made))


@pytest.mark.parametrize("kind", sorted(number for number, _ in KINDS.values()))
def test_a_layer(kind: int, tmp_path: Path) -> None:
    """Every setting, with as many processors as it wants, and with so few that each warp makes several units."""
    loaded = library(kind, tmp_path)
    launch = getattr(loaded, f"launch_recurrent_{kind}_{HIDDEN}")
    torch.manual_seed(kind)
    directions = 2 if kind == 0 else 1
    more = {"nonlinearity": "relu"} if kind == 3 else {}
    network = MODULES[kind](WIDTH, HIDDEN, bidirectional=directions == 2, **more).requires_grad_(False)
    x, (first, first_cell) = torch.randn(STEPS, BATCH, WIDTH), torch.randn(2, directions, BATCH, HIDDEN)
    truth, end = network(x, (first, first_cell) if kind == 0 else first)
    of = [dict(network.named_parameters()), ("", "_reverse")[:directions]]

    def both(name: str) -> torch.Tensor:
        return torch.cat([of[0][f"{name}_l0{suffix}"] for suffix in of[1]])

    given = (x @ both("weight_ih").T + both("bias_ih")).contiguous()
    weights, bias = both("weight_hh").contiguous(), both("bias_hh").contiguous()
    sizes = (ctypes.c_longlong * 7)(
        STEPS, BATCH, directions, BATCH * given.shape[2], given.shape[2], BATCH * truth.shape[2], truth.shape[2]
    )
    for processors in (2, 3, 12):
        ctypes.c_int.in_dll(loaded, "processors_of_the_device").value = processors
        for config in range(0, CONFIGS, 2) if processors == 12 else (1,):
            out, last, cell = (torch.full_like(like, float("nan")) for like in (truth, first, first))
            arrived = torch.full((1024,), 7, dtype=torch.int32)
            tensors = (out, last, cell, given, weights, bias, first, first_cell, arrived)
            assert launch(*(ctypes.c_void_p(t.data_ptr()) for t in tensors), sizes, config, None) == 0
            torch.testing.assert_close(out, truth, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(last, end[0] if kind == 0 else end, rtol=1e-5, atol=1e-6)
            if kind == 0:
                torch.testing.assert_close(cell, end[1], rtol=1e-5, atol=1e-6)
