"""Values that PyTorch refuses: generated C++ kernels note them, and read nothing that is out of range."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from cuda_agent.core.enums import Device
from cuda_agent.playbook.algebra import rewrite
from playbook_batches import compiled, planned, results
from playbook_harness import graph_of

pytestmark = pytest.mark.integration

_TABLE = torch.arange(12.0).view(4, 3)
#: Small whole numbers, whose sums are exact in any order.
_WIDE = torch.arange(2800.0).view(4, 700) % 7 - 3
#: function, operands that are right, and the last operand otherwise.
CASES: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "embedding": (lambda w, i: F.embedding(i, w), [_TABLE, torch.tensor([[0, 3]])], [[[0, 4]], [[-1, 0]]]),
    "mean of embeddings": (lambda w, i: F.embedding(i, w).mean(1), [_TABLE, torch.tensor([[0, 3]])], [[[0, 1 << 40]]]),
    "bag": (lambda w, i: F.embedding_bag(i, w), [_TABLE, torch.tensor([[0, 3]])], [[[0, 4]]]),
    "gather": (lambda x, i: x.gather(1, i), [_TABLE, torch.tensor([[0], [1], [2], [0]])], [[[0], [1], [3], [0]]]),
    "long gather": (lambda x, i: x[:, i.flip(0)].exp(), [_WIDE, torch.arange(-350, 350)], [torch.arange(1, 701)]),
    "softmax of a gather": (lambda x, i: x[:, i].softmax(-1), [_WIDE, torch.arange(600)], [torch.arange(600) - 701]),
    "columns of a gather": (lambda x, i: x[:, i].sum(0), [_WIDE, torch.arange(600)], [torch.arange(600) + 101]),
    "scan of a gather": (lambda x, i: x[:, i].cumsum(1), [_WIDE, torch.arange(600)], [torch.arange(600) + 101]),
    "pool of a gather": (
        lambda x, i: F.max_pool1d(x[:, i], 4), [_WIDE, torch.arange(600)], [torch.arange(600) + 101],
    ),
    "index_select": (lambda x, i: x.index_select(0, i), [_TABLE, torch.tensor([3, 0])], [[4, 0], [-1, 0]]),
    "two indices": (lambda x, i: x[i, i] * 2, [_TABLE, torch.tensor([2, -3])], [[3, 0], [0, -4]]),
    "loss": (lambda x, t: F.cross_entropy(x, t), [_TABLE, torch.tensor([0, 2, -100, 1])], [[0, 3, 1, 1]]),
    "remainder": (lambda x, y: x % y, [torch.arange(6), torch.arange(1, 7)], [range(6)]),
    "floored quotient": (lambda x, y: x // y, [torch.arange(300), torch.arange(1, 301)], [range(300)]),
    "whole quotient": (
        lambda x, y: torch.div(x, y, rounding_mode="trunc"), [torch.arange(6), torch.arange(1, 7)], [range(6)],
    ),
    "fmod": (lambda x, y: torch.fmod(x, y), [torch.arange(6), torch.arange(1, 7)], [range(6)]),
}  # fmt: skip


def test_refused_values_are_noted() -> None:
    taken = set[str]()
    plans = [planned(rewrite(graph_of(f, given)).graph, Device.CPU, taken) for f, given, _ in CASES.values()]
    launchers = compiled(plans, Device.CPU)
    for (name, (function, given, others)), plan in zip(CASES.items(), plans, strict=True):
        (ours,) = results(plan, launchers, torch.nn.Module(), given, Device.CPU)
        torch.testing.assert_close(ours, function(*given), msg=lambda text, name=name: f"{name}: {text}")
        for other in others:
            wrong = [*given[:-1], torch.as_tensor(list(other))]
            with pytest.raises((IndexError, RuntimeError)):
                function(*wrong)
            with pytest.raises(IndexError):
                results(plan, launchers, torch.nn.Module(), wrong, Device.CPU)


def test_the_least_integer_by_minus_one_wraps_around() -> None:
    """PyTorch's own process dies of it."""
    least = torch.tensor([-(2**63)])
    for function in (lambda x, y: x // y, lambda x, y: x % y, lambda x, y: torch.div(x, y, rounding_mode="trunc")):
        plan = planned(graph_of(function, [least, torch.tensor([2])]), Device.CPU, set())
        (ours,) = results(
            plan, compiled([plan], Device.CPU), torch.nn.Module(), [least, torch.tensor([-1])], Device.CPU
        )
        assert ours.item() in (-(2**63), 0)
