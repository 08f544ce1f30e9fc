"""Compares integer and boolean outputs with the reference's: indices of extremes, classes, orders.

The values must be equal, except where they depend on a tie as close as rounding. There PyTorch's own answers differ
from each other: eager at the default flags, eager at the policy, and the oracle. A candidate's value counts as
different where it equals none of these three. The number of different values is bounded four times:

- by four times the number of places in which PyTorch's own answers differ (in this trial, or in any plain one), in the
  whole output and in its worst block of 4,096;
- by one in a thousand of the values that aren't the most frequent value, so that a constant can't pass;
- no value may lie outside the range of PyTorch's answers;
- at most one in twenty of those values may differ from eager's.
"""

from __future__ import annotations

from typing import Any

from cuda_agent.judge.verify.measured import BLOCK, SLACK, Errors, Measured, Ruling, larger

#: largest share of values that equal none of PyTorch's answers, among those that aren't the most frequent value.
TIES = 1e-3
#: largest share of values that differ from eager's at the default flags, against which timed outputs are checked.
APART = 0.05
#: pieces consist of whole blocks, and their temporaries are small beside an output.
_PIECE = 1 << 22
_NONE = Errors(0.0, 0.0)
#: types that torch can't order.
_EQUAL_ONLY = ("uint16", "uint32", "uint64")


def measure_discrete(candidate: Any, eager: Any, policy: Any, oracle: Any, dtype: str) -> Measured:
    """Measures one output tensor of integers, booleans or complex numbers. Complex numbers, and unsigned integers of
    two bytes and more, must be equal."""
    import torch

    elements, failure = eager.numel(), ""
    mine, own, apart, most = _NONE, _NONE, 0.0, TIES
    if eager.is_complex() or dtype in _EQUAL_ONLY:
        count = int((candidate != eager).sum())
        failure = _said(count, elements, dtype) if count else ""
    elif not all(torch.equal(eager, other) for other in (candidate, policy, oracle)):
        # Where only eager's own answers differ, the other trials are compared with them.
        flat = [tensor.reshape(-1) for tensor in (candidate, eager, policy, oracle)]
        mine, own, apart = _differences(flat)
        most = TIES * _saying(flat[1]) / elements
        failure = _beyond(flat, dtype)
    error = 1.0 if failure else 0.0
    return Measured(elements, error, error, mine, own, mine.whole, most, dtype, failure, discrete=True, apart=apart)


def rule_discrete(measured: Measured, floor: float, pooled: Errors | None) -> Ruling:
    """Applies the bounds. `pooled` holds eager's own differences over all plain trials. A ruling that passes reports
    `floor` as its error, so that no reader takes a share for a floating-point error."""
    own = measured.eager if pooled is None else larger(measured.eager, pooled)
    mine, elements = measured.candidate, measured.elements
    whole, block = min(SLACK * own.whole, measured.excuse), SLACK * own.block
    if measured.failure:
        return Ruling(False, 1.0, own.whole, floor, measured.failure)
    if mine.whole <= whole and mine.block <= block:
        return Ruling(True, 0.0, 0.0, floor)
    said = _said(round(mine.whole * elements), elements, measured.dtype)
    if mine.whole > whole:
        ties = round(own.whole * elements)
        said += f" from all of PyTorch's own answers, which differ from each other in {ties} at the most"
        return Ruling(False, mine.whole, own.whole, max(whole, floor), said)
    size = min(BLOCK, elements)
    said += f", {round(mine.block * size)} of them in one block of {size}, where PyTorch's own answers differ in"
    said += f" {round(own.block * size)} at the most"
    return Ruling(False, mine.block, own.block, max(block, floor), said)


def far_apart(measured: Measured) -> str:
    """Returns why timed outputs couldn't be compared with eager's, "" where they can."""
    if measured.apart * TIES <= APART * measured.excuse:
        return ""
    count = round(measured.apart * measured.elements)
    return f"{_said(count, measured.elements, measured.dtype)} from eager's, though they may be the oracle's"


def _said(count: int, elements: int, dtype: str) -> str:
    return f"{count} of {elements} values of type {dtype} differ"


def _beyond(flat: list[Any], dtype: str) -> str:
    low, high = _range(flat[1:])
    candidate, elements = flat[0], flat[0].numel()
    outside = sum(int(((piece < low) | (piece > high)).sum()) for piece in candidate.split(_PIECE))
    return f"{outside} of {elements} values of type {dtype} are beyond the range of PyTorch's" if outside else ""


def _differences(flat: list[Any]) -> tuple[Errors, Errors, float]:
    """Returns the candidate's differences from all of PyTorch's answers, PyTorch's own differences from each other, and
    the share of values that differ from eager's."""
    import torch

    blocks: tuple[list[Any], ...] = ([], [], [])
    for c, e, p, o in zip(*(tensor.split(_PIECE) for tensor in flat), strict=True):
        others = c != e
        for where, counts in zip((others & (c != o) & (c != p), (p != e) | (o != e), others), blocks, strict=True):
            counts.append(_by_block(where))
    elements = flat[0].numel()
    found = []
    for counts in map(torch.cat, blocks):
        total, most = torch.stack([counts.sum(), counts.max()]).tolist()
        found.append(Errors(total / elements, most / min(BLOCK, elements)))
    return found[0], found[1], found[2].whole


def _saying(values: Any) -> int:
    """Returns how many values differ from the most frequent one if that is more than half of all, else at least
    half."""
    import torch

    values = values.to(torch.uint8) if values.dtype == torch.bool else values
    usual = (values.new_zeros(()), values.median())
    return min(int((values != value).sum()) for value in usual)


def _range(tensors: list[Any]) -> tuple[Any, Any]:
    """Returns the smallest and the largest value of all tensors."""
    import torch

    ends = [torch.stack(torch.aminmax(tensor)) for tensor in tensors]
    both = torch.stack(ends)
    return both[:, 0].amin(), both[:, 1].amax()


def _by_block(where: Any) -> Any:
    """Returns how many values are true in each block of BLOCK. The last block may be shorter."""
    import torch

    whole = where.numel() // BLOCK * BLOCK
    counts = where[:whole].view(-1, BLOCK).sum(dim=1)
    return torch.cat([counts, where[whole:].sum().reshape(1)]) if whole < where.numel() else counts
