"""The float64 answer by slices holds what the whole holds, whatever pieces are taken."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cuda_agent.core.enums import OracleWay
from cuda_agent.workers.inside.task import answers
from cuda_agent.workers.inside.task.answers import HeldAnswer, Parts, is_consecutive, on_the_host
from cuda_agent.workers.inside.task.slices import WHOLE, Slicing

ROWS = 37
#: outputs of unequal size, one of them not in row-major order.
OUTPUTS = [
    torch.randn(ROWS, 50), torch.randn(ROWS), torch.randn(ROWS, 0), torch.arange(ROWS * 6).view(ROWS, 6),
    torch.randn(9, ROWS).t(),
]  # fmt: skip


def taken(held: HeldAnswer, step: int) -> tuple[list[Any], list[Any], list[Any]]:
    """Returns eager's, the policy's and the oracle's outputs, taken in steps."""
    found = tuple([torch.empty(t.numel(), dtype=t.dtype) for t in OUTPUTS] for _ in range(3))
    for begin in range(0, ROWS * 50, step):
        begins = [min(begin, t.numel()) for t in OUTPUTS]
        places = [[t[b : b + step] for t, b in zip(tensors, begins, strict=True)] for tensors in found]
        held.fill(begins, *places)
    return found  # type: ignore[return-value]


@pytest.mark.parametrize("step", [1, 7, 64, 1 << 20])
@pytest.mark.parametrize("slicing", [Slicing(0, ROWS, (0,)), Slicing(0, ROWS, (0,), 3), WHOLE], ids=str)
@pytest.mark.parametrize("small", [0, 1 << 20])
def test_pieces_of_slices(step: int, slicing: Slicing, small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "_SMALL", small)
    made = []

    def make(begin: int, length: int) -> list[Any]:
        made.append(begin)
        return [t if slicing is WHOLE else t[begin : begin + length] for t in OUTPUTS]

    parts = Parts(OracleWay.SLICES, slicing, make, OUTPUTS)
    held = HeldAnswer(OUTPUTS, lambda: [t + 1 for t in OUTPUTS], lambda _eager: parts)
    eager, policy, oracle = taken(held, step)
    for index, tensor in enumerate(OUTPUTS):
        assert eager[index].equal(tensor.reshape(-1)) and oracle[index].equal(tensor.reshape(-1))
        assert policy[index].equal(tensor.reshape(-1) + 1)
    if small:
        assert len(made) == len(set(made)), "what is small is held, so no slice is made twice"


def test_taking_everything_ends_it() -> None:
    parts = Parts(OracleWay.WHOLE, WHOLE, lambda _begin, _length: OUTPUTS, OUTPUTS)
    held = HeldAnswer(OUTPUTS, lambda: OUTPUTS, lambda _eager: parts)
    places = [torch.empty(t.numel(), dtype=t.dtype) for t in OUTPUTS]
    assert held.fill([0] * 5, places, None, places)
    assert not held.fill([0] * 5, [place[:1] for place in places], None, None)


def test_slices_that_are_no_rows_in_a_run_are_laid_out_on_the_host() -> None:
    x = torch.randn(4, ROWS, 3)
    way = Slicing(1, ROWS, (0,))
    assert not is_consecutive(way, [x]) and is_consecutive(way, [x[:1]]) and is_consecutive(Slicing(0, 4, (0,)), [x])
    whole = on_the_host(way, lambda begin, length: [x.narrow(1, begin, length).double()], [x])
    assert whole[0].dtype is torch.float64 and whole[0].equal(x.double())
