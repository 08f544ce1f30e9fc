"""Numbers put and combined where indices say: the playbook's program for the CPU against torch, in one build."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.errors import NotCovered
from cuda_agent.playbook.proposal import propose
from playbook_harness import graph_of
from playbook_scatters import RowScatters, SliceScatters, check_scatters, row_inputs, slice_inputs

pytestmark = pytest.mark.integration


def test_every_way_agrees_with_torch(tmp_path: Path) -> None:
    check_scatters(Device.CPU, tmp_path)


class Three(nn.Module):
    """A function of three tensors."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self._function = function

    def forward(self, x: torch.Tensor, at: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return self._function(x, at, v)


def test_many_rows_are_scattered_in_shared_memory() -> None:
    found = propose(graph_of(RowScatters(), row_inputs()), Device.CUDA, Precision.FP32)
    binding = next(text for name, text in found.files.items() if name.endswith(".cpp"))
    assert binding.count("= launch_scatter_rows(") == 7 and "= launch_scatter(" not in binding
    # Rows, their size, picks, way, 64 bits; then all numbers alike.
    assert "{200, 23, 40, 1, 1}" in binding and "{200, 20, 40, 3, 1}" in binding
    assert "nullptr, -0.25f, shape" in binding


def test_slices_need_no_place_for_each_number() -> None:
    found = propose(graph_of(SliceScatters(), slice_inputs()), Device.CUDA, Precision.FP32)
    binding = found.files["kernels/fused_binding.cpp"]
    assert binding.count("= launch_scatter_slices(") == 11 and "= launch_scatter(" not in binding
    # Outer, size, inner, picks, way, 64 bits, distance of the index' numbers.
    assert "{3, 9, 20, 30, 1, 1, 1}" in binding and "{1, 9, 60, 15, 1, 1, 1}" in binding
    assert "{3, 9, 20, 30, 2, 0, 1}" in binding and "{1, 3, 180, 5, 1, 1, 1}" in binding
    assert not any("_links" in line for line in found.files["model_new.py"].splitlines())


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        # Values that each number of a joint index takes, not each of the base's.
        (
            lambda x, at, v: torch.ops.aten.index_put(x, [at.expand(1, 16)], v, True),
            [torch.zeros(9, 16), torch.tensor([[3]]), torch.ones(1, 16)],
        ),
        (
            lambda x, at, v: torch.ops.aten.index_put(x, [at.expand(16, 16)], v, True),
            [torch.zeros(9, 16), torch.randint(0, 9, (16, 1)), torch.ones(16, 16)],
        ),
    ],
    ids=["one joint row", "joint rows"],
)
def test_what_looks_like_slices(function: Callable[..., torch.Tensor], inputs: list[torch.Tensor]) -> None:
    found = propose(graph_of(Three(function), inputs), Device.CUDA, Precision.FP32)
    assert "launch_scatter_slices(" not in found.files["kernels/fused_binding.cpp"]


@pytest.mark.parametrize(("picks", "atomic"), [(15, False), (16, True)])
def test_many_picks_for_few_slices_are_put_by_atomic_operations_first(picks: int, atomic: bool) -> None:
    inputs = [torch.randn(2, 16), torch.randint(0, 2, (picks,)), torch.randn(picks, 16)]
    found = propose(graph_of(Three(lambda x, at, v: x.index_add(0, at, v)), inputs), Device.CUDA, Precision.FP32)
    assert (" + 2) % 4, stream)" in found.files["kernels/fused_binding.cpp"]) == atomic


def test_a_scatter_without_dimensions_is_not_covered() -> None:
    inputs = [torch.tensor(1.0), torch.tensor(0), torch.tensor(2.0)]
    with pytest.raises(NotCovered):
        propose(graph_of(Three(lambda x, at, v: x.scatter_add(0, at, v)), inputs), Device.CUDA, Precision.FP32)


def test_a_place_that_is_a_constant_of_one_element() -> None:
    """Put into memory it is another buffer than the input that it was."""

    def put(x: torch.Tensor, at: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return x.index_add(1, torch.tensor([2]), v) + at

    inputs = [torch.randn(3, 9, 16), torch.randn(16), torch.randn(3, 1, 16)]
    binding = propose(graph_of(Three(put), inputs), Device.CUDA, Precision.FP32).files["kernels/fused_binding.cpp"]
    (signature,) = (line for line in binding.splitlines() if " fused_forward(" in line)
    made = [line.split()[1] for line in binding.splitlines() if line.startswith("  torch::Tensor ")]
    assert made and not any(f"& {name}," in signature or f"& {name})" in signature for name in made)


def test_slices_of_few_numbers_are_put_one_by_one() -> None:
    class Few(nn.Module):
        def forward(self, x: torch.Tensor, at: torch.Tensor, more: torch.Tensor) -> torch.Tensor:
            return x.index_add(0, at, more)

    found = propose(
        graph_of(Few(), [torch.randn(9, 5), torch.randint(0, 9, (7,)), torch.randn(7, 5)]), Device.CUDA, Precision.FP32
    )
    assert "= launch_scatter(" in found.files["kernels/fused_binding.cpp"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x, at: x.double().scatter_add(0, at, x.double()),
        lambda x, at: x.scatter_reduce(0, at, x, "mean"),
        lambda x, at: x.scatter_reduce(0, at, x, "sum", include_self=False),
    ],
    ids=["double", "mean", "without itself"],
)
def test_elsewhere_it_is_not_covered(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    class Function(nn.Module):
        def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            return function(x, at)

    graph = graph_of(Function(), [torch.randn(8, 5), torch.randint(0, 8, (8, 5))])
    for device in Device:
        with pytest.raises(NotCovered):
            propose(graph, device, Precision.FP32)
