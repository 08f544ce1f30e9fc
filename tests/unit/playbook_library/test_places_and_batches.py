"""Constant places as slices, and sums over batches of products: rewrites keep the function."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_graph import Function, check, main_ops


@pytest.mark.parametrize(
    ("x", "columns", "adds_up"),
    [
        (torch.randn(2, 3, 4), 4, True),
        (torch.randn(2, 3, 4), 5, False),
        (torch.randn(3, 2, 4).transpose(0, 1), 4, False),
        (torch.randn(2, 1, 4), 4, False),
    ],
    ids=["few columns", "many columns", "no copy", "one row"],
)
def test_a_sum_over_a_batch_of_products_copies_what_is_small(x, columns, adds_up):
    module = Function(lambda m, x, y: torch.addbmm(m.c, x, y), c=nn.Parameter(torch.randn(x.shape[1], columns)))
    ops = main_ops(check(module, x, torch.randn(2, x.shape[2], columns)))
    assert ("permute" in ops) != adds_up and ("sum" in ops) == adds_up, ops


@pytest.mark.parametrize(
    ("places", "becomes"),
    [
        ([0, 2, 4], "slice"),
        ([3], "slice"),
        ([-1, -2, -3], "slice flip"),
        ([4, 2, 0], "slice flip"),
        ([2, 3, 4, 0, 1], "roll"),
        ([4, 0], "slice flip"),
        ([0, 0, 0], "index"),
        ([1, 2, 4], "index"),
    ],
    ids=str,
)
def test_constant_places(places, becomes):
    select = [place % 5 for place in places]
    module = Function(lambda m, x: (torch.exp(x[:, places]), torch.exp(x.index_select(-2, torch.tensor(select)))))
    ops = set(main_ops(check(module, torch.randn(3, 5, 2))))
    assert ops - {"exp", "index_select"} == set(becomes.split()), ops
    assert ("index_select" in ops) == (becomes == "index")


def test_constant_places_of_a_result_stay_a_copy():
    ops = main_ops(check(Function(lambda m, x: x[:, [0, 1]]), torch.randn(3, 5)))
    assert ops == ["index"]
