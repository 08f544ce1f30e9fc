"""Which tasks are answered slice by slice: those whose rows don't depend on each other, and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from cuda_agent.core.errors import OutOfMemory
from cuda_agent.workers.inside.task.slices import WHOLE, Slicing, find_slices

ROWS = 40


def found(forward: Callable[..., Any], *inputs: torch.Tensor) -> Slicing:
    def answer(tensors: list[Any]) -> list[Any]:
        value = forward(*tensors)
        return list(value) if isinstance(value, tuple) else [value]

    outputs = answer(list(inputs))
    return find_slices(inputs, outputs, answer, lambda tensors: answer([t.double() for t in tensors]))


def rows(*shape: int) -> torch.Tensor:
    return torch.randn(ROWS, *shape, generator=torch.Generator().manual_seed(len(shape)))


@pytest.mark.parametrize(
    ("forward", "inputs", "cut"),
    [
        (torch.sin, (rows(8),), (0,)),
        (lambda x: F.layer_norm(x, (8,)), (rows(8),), (0,)),
        (lambda x: (x.argmax(1), x.sum(1)), (rows(8),), (0,)),
        (lambda x: F.scaled_dot_product_attention(x, x, x), (rows(6, 8),), (0,)),
        (lambda x, y: x + y, (rows(8), rows(8)), (0, 1)),
        # The weight has as many rows as the batch, by chance.
        (lambda x, w: x @ w, (rows(ROWS), rows(ROWS)), (0,)),
        (lambda x: x.masked_fill(x > 0, float("-inf")), (rows(8),), (0,)),
    ],
)
def test_batches_are_cut(forward: Callable[..., Any], inputs: tuple[torch.Tensor, ...], cut: tuple[int, ...]) -> None:
    assert found(forward, *inputs) == Slicing(0, ROWS, cut)


def test_a_scan_over_the_batch_is_cut_along_the_next_dimension() -> None:
    assert found(lambda x: x.cumsum(0), rows(48)) == Slicing(1, 48, (0,))


@pytest.mark.parametrize(
    "forward",
    [
        lambda x: x - 1e-6 * x.mean(),
        lambda x: x / x.abs().max(),
        lambda x: x.flip(0).flip(1),
        lambda x: x.roll(ROWS // 2, 0).roll(4, 1),
        lambda x: x / x.shape[0] / x.shape[1],
        lambda x: x.sum(),
        lambda x: F.batch_norm(x, None, None, training=True).softmax(1),
        lambda x: x.t() @ x,
    ],
)
def test_rows_that_depend_on_each_other_are_not_cut(forward: Callable[..., Any]) -> None:
    assert found(forward, rows(8)) is WHOLE


def test_too_little_memory_is_no_reason_to_take_the_whole() -> None:
    def short(_tensors: list[Any]) -> list[Any]:
        raise OutOfMemory("too little", "")

    with pytest.raises(OutOfMemory):
        find_slices([rows(8)], [rows(8)], short, short)


def test_slices_cover_all_rows() -> None:
    for count in (2, 15, 16, 17, 100):
        way = Slicing(0, count, (0,))
        assert sum(min(way.length, count - begin) for begin in way.begins()) == count
        assert len(way.begins()) <= 16
