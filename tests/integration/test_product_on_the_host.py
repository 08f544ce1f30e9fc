"""What follows a product in one kernel, by the kernel's own text, with the product computed by the host."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest
import torch
from fused_products import CASES, case, launch, source_of
from library_cases import exact, relative_error
from library_kernels import graph_of

from cuda_agent.core.enums import Device, Precision
from cuda_agent.playbook.codegen import environment
from cuda_agent.playbook.plan import Step
from cuda_agent.playbook.planner import plan
from cuda_agent.playbook.skills.gemm.fused import TILINGS
from playbook_harness import given_buffers

pytestmark = pytest.mark.integration

HEADER = Path(__file__).parent.parent / "data" / "product_on_host.h"


@pytest.mark.parametrize(("name", "dtype"), [*((name, torch.bfloat16) for name in CASES), ("gelu", torch.float16)])
def test_the_epilogue_computes_what_follows(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    module, inputs = case(name, dtype)
    graph = graph_of(module, inputs)
    (step,), state = plan(graph, Device.CUDA, Precision.FP32)
    library, buffers = compiled(step, tmp_path), given_buffers(graph, module, inputs, "cpu")
    for buffer in step.outputs:
        meta = buffer.meta
        buffers[buffer.name] = torch.empty_strided(meta.shape, meta.strides, dtype=getattr(torch, meta.dtype))
    for tiling in range(len(TILINGS) + 1):
        assert launch(library, step, buffers, tiling, None) == (-1 if tiling == len(TILINGS) else 0)
    for found, truth in zip([buffers[name] for name in state.returned], exact(module, inputs), strict=True):
        assert found.shape == truth.shape
        if found.dtype == torch.bool:
            assert (found == truth).float().mean() > 0.99
        else:
            assert relative_error(found, truth) < (8e-3 if dtype is torch.bfloat16 else 1e-3)


def compiled(step: Step, folder: Path) -> ctypes.CDLL:
    text = step.files[source_of(step)]
    (folder / "product.cuh").write_text(HEADER.read_text())
    (folder / "elementwise.h").write_text(environment().get_template("shared/elementwise.h").render())
    (folder / "x.cpp").write_text(text)
    command = ["g++", "-O1", "-std=c++20", "-fopenmp", "-w", "-shared", "-fPIC", f"{folder}/x.cpp", "-o", f"{folder}/x"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stderr[:2000]}\n{text}"
    return ctypes.CDLL(f"{folder}/x")
