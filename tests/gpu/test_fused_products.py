"""A product and what follows it in one kernel, on a GPU: every tiling against float64, with drawn sizes."""

from __future__ import annotations

import ctypes
import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fused_products import CASES, Layer, case, launch, source_of
from library_cases import exact, relative_error
from library_kernels import compiled, graph_of, results_of_proposal
from torch import nn

from cuda_agent.core.enums import Device, Precision
from cuda_agent.playbook.planner import plan
from cuda_agent.playbook.skills.gemm.fused import TILINGS
from cuda_agent.playbook.skills.gemm.skill import CONFIGS
from playbook_harness import given_buffers

pytestmark = pytest.mark.gpu

#: a result's elements before any kernel wrote there.
UNTOUCHED = 77.0


def gelu_residual(layer: Layer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.gelu(layer.inner(x)) + y


def gate(layer: Layer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.silu(y) * layer.inner(x)


def check(module: nn.Module, inputs: list[torch.Tensor], dtype: torch.dtype, folder: Any) -> None:
    """Runs every tiling three times. Nothing behind the results may change."""
    graph = graph_of(module, inputs)
    (step,), state = plan(graph, Device.CUDA, Precision.FP32)
    for path, text in step.files.items():
        (folder / path.removeprefix("kernels/")).write_text(text)
    library = compiled(folder / source_of(step).removeprefix("kernels/"), folder, ())
    truths = exact(module, inputs)
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    for tiling in range(len(TILINGS)):
        buffers = given_buffers(graph, module, inputs, "cuda")
        behind = []
        for buffer in step.outputs:
            meta = buffer.meta
            whole = torch.full((meta.numel + 4096,), UNTOUCHED, device="cuda").to(getattr(torch, meta.dtype))
            buffers[buffer.name] = whole.as_strided(meta.shape, meta.strides)
            behind.append(whole[meta.numel :])
        for _ in range(3):
            assert launch(library, step, buffers, tiling, stream) == 0
        torch.cuda.synchronize()
        for found, truth in zip([buffers[name] for name in state.returned], truths, strict=True):
            if found.dtype == torch.bool:
                assert (found.cpu() == truth.cpu()).float().mean() > 0.99
            else:
                error = relative_error(found, truth)
                assert error < (8e-3 if dtype is torch.bfloat16 else 1e-3), (TILINGS[tiling], error)
        assert all((rest == torch.tensor(UNTOUCHED).to(rest.dtype)).all() for rest in behind), TILINGS[tiling]


@pytest.mark.parametrize("name", CASES)
def test_every_case(name, tmp_path):
    module, inputs = case(name, torch.bfloat16, "cuda")
    check(module, inputs, torch.bfloat16, tmp_path)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("seed", range(8))
def test_drawn_sizes(seed, dtype, tmp_path):
    draw = random.Random(seed)
    rows, high, wide = draw.randint(64, 4000), 8 * draw.randint(8, 500), 8 * draw.randint(1, 128)
    function, bias = ((gelu_residual, True), (gate, False))[seed % 2]
    torch.manual_seed(seed)
    module = Layer(function, wide, high, bias=bias).to("cuda", dtype)
    check(module, [torch.randn(rows, size).to("cuda", dtype) for size in (wide, high)], dtype, tmp_path)


@pytest.mark.parametrize(
    "sizes", [(128, 256, 64), (64, 64, 8), (256, 512, 4096), (12608, 1024, 128), (4096, 4104, 256)]
)
def test_sizes_at_the_edges(sizes, tmp_path):
    rows, high, wide = sizes
    module = Layer(gelu_residual, wide, high).to("cuda", torch.bfloat16)
    check(
        module, [torch.randn(rows, size).to("cuda", torch.bfloat16) for size in (wide, high)], torch.bfloat16, tmp_path
    )


@pytest.mark.parametrize("setting", [0, 1, *range(CONFIGS, CONFIGS + len(TILINGS))])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_whole_proposals_at_every_setting(dtype, setting, tmp_path):
    from library_cases import feed_forward

    truths = exact(*feed_forward(getattr(torch, dtype)))
    found = results_of_proposal("feed_forward", dtype, Device.CUDA, tmp_path, setting=setting)
    for one, truth in zip(found, truths, strict=True):
        assert relative_error(one, truth) < (2e-2 if dtype == "bfloat16" else 2e-3)
