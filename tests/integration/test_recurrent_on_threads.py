"""The recurrent kernel's own text, its grid run as threads of the host: what it does, where no GPU can run it."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn

from cuda_agent.core.enums import Device
from cuda_agent.playbook.skills.recurrent.skill import CONFIGS, kernel

pytestmark = pytest.mark.integration

HARNESS = Path(__file__).parent.parent / "data" / "grid_on_threads.h"
STEPS, BATCH, WIDTH = 3, 11, 5
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
    torch.manual_seed(kind)
    more = {"nonlinearity": "relu"} if kind == 3 else {}
    network = MODULES[kind](WIDTH, hidden, bidirectional=directions == 2, batch_first=batch_first, **more)
    network.requires_grad_(False)
    x, (first, first_cell) = torch.randn(STEPS, BATCH, WIDTH), torch.randn(2, directions, BATCH, hidden)
    x = x.transpose(0, 1).contiguous() if batch_first else x
    start = (first, first_cell) if kind == 0 else first
    truth, end = network(x, start if starts else None)
    named, suffixes = dict(network.named_parameters()), ("", "_reverse")[:directions]

    def both(name: str) -> torch.Tensor:
        return torch.cat([named[f"{name}_l0{suffix}"] for suffix in suffixes])

    given = (x @ both("weight_ih").T + both("bias_ih")).contiguous()
    weights, bias, truth = both("weight_hh").contiguous(), both("bias_hh").contiguous(), truth.contiguous()
    apart = [
        (width, STEPS * width) if batch_first else (BATCH * width, width) for width in (given.shape[2], truth.shape[2])
    ]
    sizes = (ctypes.c_longlong * 7)(STEPS, BATCH, directions, *apart[0], *apart[1])
    row_bytes = -(-hidden // 128) * 128 * 4
    ctypes.c_int.in_dll(loaded, "shared_bytes_of_a_block").value = 8 * row_bytes
    for count in processors:
        ctypes.c_int.in_dll(loaded, "processors_of_the_device").value = count
        for config in range(0, CONFIGS, 2) if count == max(processors) else (1,):
            out, last, cell = (torch.full_like(like, float("nan")) for like in (truth, first, first))
            arrived = torch.full((1024,), 7, dtype=torch.int32)
            tensors = (
                out,
                last,
                cell,
                given,
                weights,
                bias,
                *((first, first_cell) if starts else (None, None)),
                arrived,
            )
            pointers = [None if t is None else ctypes.c_void_p(t.data_ptr()) for t in tensors]
            assert launch(*pointers, sizes, config, None) == 0
            torch.testing.assert_close(out, truth, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(last, end[0] if kind == 0 else end, rtol=1e-5, atol=1e-6)
            if kind == 0:
                torch.testing.assert_close(cell, end[1], rtol=1e-5, atol=1e-6)
    ctypes.c_int.in_dll(loaded, "shared_bytes_of_a_block").value = 8 * row_bytes - 1
    assert launch(*pointers, sizes, 0, None) != 0, "less than eight rows"


def test_what_threads_of_a_host_cannot_show() -> None:
    """Their memory is ordered anyway."""
    text = kernel(0, 256, Device.CUDA)
    arrive, four = text[text.index("void arrive(") :], text[text.index("float4 four(") :]
    assert arrive.index("__threadfence()") < arrive.index("atomicAdd(")
    assert "__ldcg" in four[: four.index("\n}")] and "ld.acquire.gpu" in text
