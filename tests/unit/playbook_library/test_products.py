"""How the rows of a product are asked for, by where its operand lies."""

from __future__ import annotations

from collections.abc import Callable

import torch
from library_kernels import graph_of
from torch import nn

from cuda_agent.core.enums import Device, Precision
from cuda_agent.playbook.plan import Step
from cuda_agent.playbook.planner import plan
from cuda_agent.playbook.proposal import propose


class Layer(nn.Module):
    def __init__(self, function: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.inner, self.function = nn.Linear(32, 48), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.inner, x)


def steps_of(function: Callable[[nn.Module, torch.Tensor], torch.Tensor], *shape: int) -> tuple[Step, ...]:
    graph = graph_of(Layer(function), [torch.randn(*shape)])
    return plan(graph, Device.CUDA, Precision.TF32)[0]


def test_rows_in_another_order_are_one_matrix_whose_result_has_that_order_too() -> None:
    product, sine = steps_of(lambda inner, x: inner(x.transpose(0, 1)).relu().sin(), 8, 200, 32)
    assert list(product.tunables) == ["gemm_1x1600x48x32_nt"]
    (result,) = product.outputs
    assert result.meta.shape == (200, 8, 48) and result.meta.strides == (48, 200 * 48, 1)
    assert sine.inputs == (result.name,)


def test_few_rows_of_many_matrices_that_share_a_weight_are_copied_into_one() -> None:
    steps = steps_of(lambda inner, x: inner(x[:, 1:9]).sin(), 40, 10, 32)
    assert [step.skill for step in steps] == ["pointwise", "gemm", "pointwise"]
    assert list(steps[1].tunables) == ["gemm_1x320x48x32_nt"]


def test_many_rows_stay_where_they_are() -> None:
    steps = steps_of(lambda inner, x: inner(x[:, 1:101]).sin(), 40, 102, 32)
    assert [step.skill for step in steps] == ["gemm", "pointwise"]
    assert list(steps[0].tunables) == ["gemm_40x100x48x32_nt"]


def test_matrices_that_an_index_picks_are_read_where_they_lie() -> None:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Parameter(torch.randn(4, 160, 64)), nn.Parameter(torch.randn(4, 96, 160))

        def forward(self, x: torch.Tensor, picked: torch.Tensor) -> torch.Tensor:
            inner = torch.nn.functional.silu(torch.bmm(self.up[picked], x.unsqueeze(-1)))
            return torch.bmm(self.down[picked], inner).squeeze(-1)

    found = propose(graph_of(Experts(), [torch.randn(9, 64), torch.randint(0, 4, (9,))]), Device.CUDA, Precision.TF32)
    assert found.skills == ("algebra", "rowreduce", "pointwise")
    # What costs much isn't computed again for each of the 96 rows.
    assert [name.partition("_")[0] for name in found.steps] == ["rows", "pointwise", "rows"]
    binding = next(text for name, text in found.files.items() if name.endswith(".cpp"))
    assert "{9, 160, 64}" not in binding and "{9, 96, 160}" not in binding
