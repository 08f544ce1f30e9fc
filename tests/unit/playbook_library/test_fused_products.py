"""Which products are one step with the kernel after them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fused_products import CASES, Layer, case
from library_kernels import graph_of
from torch import nn

from cuda_agent.core.enums import Device, Precision
from cuda_agent.playbook.plan import DEFAULT, Options, Step
from cuda_agent.playbook.planner import plan
from cuda_agent.playbook.proposal import propose
from cuda_agent.playbook.skills.gemm.fused import TILINGS
from cuda_agent.playbook.skills.gemm.skill import CONFIGS

HALF = torch.bfloat16


def steps_of(
    module: nn.Module, *inputs: torch.Tensor, options: Options = DEFAULT, device: Device = Device.CUDA
) -> tuple[Step, ...]:
    graph = graph_of(module, list(inputs))
    steps = plan(graph, device, Precision.TF32, options)[0]
    known = {item.name for item in graph.inputs}
    for step in steps:
        assert known.issuperset(step.inputs), step
        known |= {buffer.name for buffer in step.outputs}
    return steps


def layer(function: Callable[..., Any], *shape: int, dtype: torch.dtype = HALF, high: int = 96) -> tuple[Any, ...]:
    return Layer(function, shape[-1], high).to(dtype), torch.randn(*shape, dtype=dtype)


def is_fused(step: Step) -> bool:
    return any(path.startswith("kernels/product_") for path in step.files)


@pytest.mark.parametrize("name", CASES)
def test_a_product_and_what_alone_reads_it_are_one_step(name: str) -> None:
    module, inputs = case(name, HALF)
    (step,) = steps_of(module, *inputs)
    assert is_fused(step) and step.skill == "gemm" and len(step.scratch) == 1
    tunable, *_ = step.tunables
    assert step.tunables[tunable] == CONFIGS + len(TILINGS)


def test_the_first_settings_are_those_of_the_library_and_the_kernel() -> None:
    module, inputs = case("gelu", HALF)
    found = propose(graph_of(module, inputs), Device.CUDA, Precision.TF32)
    assert found.tunables == {"gemm_1x100x96x64_nt_gelu": 21, "pointwise_gelu": 5}
    binding = found.files["kernels/fused_binding.cpp"]
    text = " ".join(binding.split())
    assert f"if (config_gemm_1x100x96x64_nt_gelu < {CONFIGS}) {{ const int config_gemm_1x100x96x64_nt = " in text
    assert text.index("launch_gemm(l") < text.index("launch_pointwise_gelu(s") < text.index("} else {")
    assert f"64, 64, 64, config_gemm_1x100x96x64_nt_gelu - {CONFIGS}, stream);" in text
    for declared in ("int launch_gemm(", "void launch_pointwise_gelu(", "int launch_product_gelu_"):
        assert binding.count(f'\nextern "C" {declared}') == 1


def test_a_gate_is_read_where_it_lies() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.up, self.down = nn.Linear(64, 96), nn.Linear(64, 96), nn.Linear(96, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.down(F.silu(self.gate(x)) * self.up(x)) + x

    gate, up, down = steps_of(Gated().to(HALF), torch.randn(4, 32, 64, dtype=HALF))
    assert [is_fused(step) for step in (gate, up, down)] == [False, True, True]
    assert gate.outputs[0].name in up.inputs
    # Products of one shape with and without a tail have settings of their own.
    assert not set(gate.tunables) & set(up.tunables)


def test_equal_layers_share_their_kernels() -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.ModuleList(nn.Linear(64, 96) for _ in range(3))
            self.down = nn.ModuleList(nn.Linear(96, 64) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for up, down in zip(self.up, self.down, strict=True):
                x = x + down(F.gelu(up(x)))
            return x

    steps = steps_of(Deep().to(HALF), torch.randn(128, 64, dtype=HALF))
    assert len(steps) == 6 and all(map(is_fused, steps))
    assert len({path for step in steps for path in step.files if path.endswith(".cu")}) == 5


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: (lambda y: (y, F.gelu(y)))(m.inner(x)),
        lambda m, x: (lambda y: F.gelu(y) @ y.mT)(m.inner(x)),
        lambda m, x: (lambda y: F.gelu(y).sum(-1) + y.mean())(m.inner(x)),
        lambda m, x: (lambda y: F.gelu(y.view(2, 64, 96).flip(0)))(m.inner(x)),
        lambda m, x: m.inner(x).sin().mT.contiguous(),
        lambda m, x: F.gelu(m.inner(x)).softmax(-1),
        lambda m, x: (lambda a, b: F.silu(a) * b)(*m.inner(x).chunk(2, -1)),
        lambda m, x: m.inner(x).unsqueeze(0) * torch.ones(3, 1, 1, dtype=x.dtype),
    ],
)
def test_what_is_read_twice_reduced_or_moved_is_not_fused(function: Callable[..., Any]) -> None:
    assert not any(map(is_fused, steps_of(*layer(function, 128, 64))))


def gelu(module: Layer, x: torch.Tensor) -> torch.Tensor:
    return F.gelu(module.inner(x))


@pytest.mark.parametrize(
    ("shape", "dtype", "high"),
    [
        ((128, 64), torch.float32, 96),
        ((32, 64), HALF, 96),
        ((128, 60), HALF, 96),
        ((128, 64), HALF, 100),
        ((128, 64), HALF, 48),
    ],
)
def test_other_products_are_the_librarys(shape: tuple[int, ...], dtype: torch.dtype, high: int) -> None:
    product, tail = steps_of(*layer(gelu, *shape, dtype=dtype, high=high))
    assert product.skill == "gemm" and tail.skill == "pointwise" and not is_fused(product)


def test_matrices_that_are_not_a_layers_weight_are_the_librarys() -> None:
    class Plain(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return F.gelu(x @ y)

    wide, high = torch.randn(128, 64, dtype=HALF), torch.randn(64, 96, dtype=HALF)
    assert len(steps_of(Plain(), wide, high)) == 2
    assert len(steps_of(Plain(), wide.expand(2, 128, 64), high.expand(2, 64, 96))) == 2


def test_the_baseline_without_fusion_and_the_cpu_have_two_steps() -> None:
    module, inputs = case("gelu", HALF)
    assert len(steps_of(module, *inputs, options=Options(fused=False))) == 2
    assert len(steps_of(module, *inputs, device=Device.CPU)) == 2
