"""Where selection is planned, and what it is asked for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from library_kernels import graph_of
from torch import nn

from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.errors import NotCovered
from cuda_agent.playbook.proposal import Proposal, propose


class Function(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> object:
        return self.function(x)


def planned(function: Callable[[torch.Tensor], object], *shape: int, device: Device = Device.CUDA) -> Proposal:
    return propose(graph_of(Function(function), [torch.randn(*shape)]), device, Precision.FP32)


def binding_of(proposal: Proposal) -> str:
    return next(text for name, text in proposal.files.items() if name.endswith(".cpp"))


def shape_of(proposal: Proposal) -> str:
    return binding_of(proposal).partition("shape[] = {")[2].partition("}")[0]


def test_rows_are_read_where_they_lie_and_the_rest_is_fused_around() -> None:
    found = planned(lambda x: torch.topk(x.relu(), 5)[0].sum(-1), 3, 4, 70)
    assert found.skills == ("pointwise", "selection", "rowreduce")
    assert shape_of(found) == "12, 70, 70, 5, 1, 0, 0"
    assert shape_of(planned(lambda x: torch.topk(x[:, :40], 5, largest=False), 8, 70)) == "8, 40, 70, 5, 0, 0, 0"


def test_the_kth_and_the_median_are_one_number_of_a_row() -> None:
    assert shape_of(planned(lambda x: torch.kthvalue(x, 7, keepdim=True), 6, 70)) == "6, 70, 70, 7, 0, 1, 0"
    found = planned(lambda x: x.median(-1), 6, 70)
    assert shape_of(found) == "6, 70, 70, 35, 0, 1, 1" and found.skills == ("selection",)


def test_a_sort_is_the_selection_of_all() -> None:
    found = planned(lambda x: torch.sort(x, descending=True)[0] + 1.0, 6, 70)
    assert shape_of(found) == "6, 70, 70, 1, 0" and "kernels/sort.cu" in found.files
    found = planned(lambda x: torch.argsort(x, dim=1, stable=True), 6, 70)
    assert shape_of(found) == "6, 70, 70, 0, 0" and "launch_sort(nullptr, " in binding_of(found)
    assert shape_of(planned(lambda x: torch.sort(x.long())[0], 6, 70)) == "6, 70, 70, 0, 1"
    assert shape_of(planned(lambda x: torch.topk(x, 70), 6, 70)) == "6, 70, 70, 1, 0"
    assert shape_of(planned(lambda x: torch.sort(x)[0], 6, 7)) == "6, 7, 7, 7, 0, 0, 0"
    with pytest.raises(NotCovered, match="sort"):
        planned(lambda x: torch.sort(x.int())[0], 6, 70)


def test_along_another_dimension_rows_are_copied_first_and_the_result_lies_as_they_do() -> None:
    found = planned(lambda x: x.msort().sin(), 70, 40)
    assert shape_of(found) == "40, 70, 70, 0, 0" and found.skills == ("pointwise", "selection")
    assert "empty_strided({70, 40}, {1, 70}" in binding_of(found)
    found = planned(lambda x: torch.topk(x, 5, dim=0)[0].sin(), 70, 4, 3)
    assert shape_of(found) == "12, 70, 70, 5, 1, 0, 0"
    assert "empty_strided({5, 4, 3}, {1, 15, 5}" in binding_of(found)
    assert shape_of(planned(lambda x: x.median(0), 70, 4, 3)) == "12, 70, 70, 35, 0, 1, 1"


@pytest.mark.parametrize(
    "function",
    [lambda x: torch.topk(x, 5000), lambda x: torch.topk(x.double(), 5)],
    ids=["many", "double"],
)
def test_elsewhere_it_is_not_covered(function: Callable[[torch.Tensor], object]) -> None:
    with pytest.raises(NotCovered, match="topk"):
        planned(function, 8, 6000)
    with pytest.raises(NotCovered, match="topk"):
        planned(lambda x: torch.topk(x, 5), 8, 60, device=Device.CPU)
