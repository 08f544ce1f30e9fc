"""Indices outside a tensor raise before the operator runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from cuda_agent.workers.inside.task.indices import CheckedIndices
from cuda_agent.workers.inside.task.slices import WHOLE, find_slices

X = torch.randn(4, 6)
#: how each operator is called with an index, and how many entries the index addresses.
CALLS: dict[str, tuple[Callable[[Any], Any], int]] = {
    "index_select": (lambda i: X.index_select(1, i), 6),
    "gather": (lambda i: X.gather(0, i[None]), 4),
    "scatter": (lambda i: X.scatter(1, i[None], 1.0), 6),
    "scatter_add_": (lambda i: X.clone().scatter_add_(0, i[:, None], torch.ones(1, 1)), 4),
    "scatter_reduce": (lambda i: X.scatter_reduce(1, i[None], torch.ones(1, 1), "amax"), 6),
    "index_add": (lambda i: X.index_add(0, i, torch.ones(1, 6)), 4),
    "index_reduce": (lambda i: X.index_reduce(0, i, torch.ones(1, 6), "amax"), 4),
    "index_copy": (lambda i: X.index_copy(0, i, torch.ones(1, 6)), 4),
    "index_fill": (lambda i: X.index_fill(0, i, 1.0), 4),
    "x[i]": (lambda i: X[i], 4),
    "x[:, i]": (lambda i: X[:, i], 6),
    "index_put": (lambda i: X.index_put((i,), torch.ones(1, 6)), 4),
    "take": (lambda i: X.take(i), 24),
    "embedding": (lambda i: F.embedding(i, X), 4),
    "embedding_bag": (lambda i: F.embedding_bag(i[None], X), 4),
    "cross_entropy": (lambda i: F.cross_entropy(X[:1], i), 6),
    "nll_loss2d": (lambda i: F.nll_loss(X[:, :, None, None][:1], i[None, None]), 6),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_index_outside_raises(name: str) -> None:
    call, size = CALLS[name]
    with CheckedIndices():
        call(torch.tensor([size - 1]))
        with pytest.raises(IndexError, match=rf"addresses {size} to {size} of {size} entries"):
            call(torch.tensor([size]))


def test_masks_and_ignored_classes_address_nothing() -> None:
    with CheckedIndices():
        assert X[X > 0].ndim == 1
        assert X[:, torch.ones(6, dtype=torch.bool)].shape == X.shape
        assert F.cross_entropy(X, torch.tensor([-100, 5, 0, -100])).isfinite()


def test_a_task_that_addresses_its_rows_is_tried_without_harm() -> None:
    rows, index = torch.randn(32, 3), torch.tensor([31, 5])
    caught = []

    def answer(tensors: list[Any]) -> list[Any]:
        try:
            return [tensors[0].index_add(0, tensors[1], torch.ones(2, 3))]
        except IndexError as error:
            caught.append(str(error))
            raise

    assert find_slices([rows, index], answer([rows, index]), answer, answer) is WHOLE
    assert caught == ["index_add addresses 5 to 31 of 2 entries"]
