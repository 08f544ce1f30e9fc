"""Integers and booleans of an output against the reference's: places of extremes, classes, orders.

They must be equal, but where values tie as near as rounding: there PyTorch's own answers differ from each other, in
another order of summation or under TF32. A candidate's value counts as different where it is neither eager's nor the
oracle's. Of these there may be four times as many as of eager's own (places where eager at the flags, eager at the
policy and the oracle aren't all the same) in the whole output and in its worst block of 4,096, at the most one in a
thousand, and none beyond the range of these three. Where PyTorch's answers are all the same in every plain trial, so
must the candidate's be.
"""

from __future__ import annotations

from typing import Any

from cuda_agent.judge.measured import SLACK, Errors, Measured, Ruling, larger
from cuda_agent.judge.onepass import BLOCK

#: share of integers that may differ, however unsure PyTorch is.
TIES = 1e-3
#: pieces of whole blocks, whose temporaries are small beside an output.
_PIECE = 1 << 22
_NONE = Errors(0.0, 0.0)


def measure_discrete(candidate: Any, eager: Any, policy: Any, oracle: Any, dtype: str) -> Measured:
    """One output tensor of integers, booleans or complex numbers (which must be equal)."""
    import torch

    elements, failure = eager.numel(), ""
    mine = own = _NONE
    if eager.is_complex():
        mine = _NONE if torch.equal(candidate, eager) else Errors(1.0, 1.0)
        failure = _said(mine, elements, dtype) if mine.whole else ""
    elif not all(torch.equal(eager, other) for other in (candidate, policy, oracle)):
        # Where only eager's own differ, other trials are held against them.
        mine, own, outside = _differences([tensor.reshape(-1) for tensor in (candidate, eager, policy, oracle)])
        if outside or mine.whole > TIES:
            failure = _said(mine, elements, dtype) + (", by values outside the reference's range" if outside else "")
    error = 1.0 if failure else 0.0
    return Measured(elements, error, error, mine, own, 0.0, 0.0, dtype, failure, discrete=True)


def rule_discrete(measured: Measured, floor: float, pooled: Errors | None) -> Ruling:
    """`pooled`: eager's own over all plain trials. `floor` is what a ruling that passes says, which no other takes for
    an error of floating point."""
    own = measured.eager if pooled is None else larger(measured.eager, pooled)
    mine = measured.candidate
    budget = min(SLACK * own.whole, TIES)
    excused = mine.whole <= budget and mine.block <= SLACK * own.block
    if not measured.failure and excused:
        return Ruling(True, 0.0, 0.0, floor)
    ties = round(own.whole * measured.elements)
    said = f"{_said(mine, measured.elements, measured.dtype)}; in {ties} PyTorch's own answers do, at the most"
    return Ruling(False, mine.whole, own.whole, max(budget, floor), measured.failure or said)


def _said(mine: Errors, elements: int, dtype: str) -> str:
    return f"{round(mine.whole * elements)} of {elements} values of type {dtype} differ"


def _differences(flat: list[Any]) -> tuple[Errors, Errors, bool]:
    """The candidate's, eager's own, and whether any of the candidate's is beyond the range of the other three."""
    import torch

    low, high = _range(flat[1:])
    blocks: tuple[list[Any], list[Any]] = ([], [])
    outside = []
    for c, e, p, o in zip(*(tensor.split(_PIECE) for tensor in flat), strict=True):
        outside.append(((c < low) | (c > high)).any())
        for where, counts in zip(((c != e) & (c != o), (p != e) | (o != e)), blocks, strict=True):
            counts.append(_by_block(where))
    elements = flat[0].numel()
    found = []
    for counts in map(torch.cat, blocks):
        total, most = torch.stack([counts.sum(), counts.max()]).tolist()
        found.append(Errors(total / elements, most / min(BLOCK, elements)))
    return found[0], found[1], bool(torch.stack(outside).any())


def _range(tensors: list[Any]) -> tuple[Any, Any]:
    """The smallest and the largest of all."""
    import torch

    ends = [torch.stack(torch.aminmax(tensor)) for tensor in tensors]
    both = torch.stack(ends)
    return both[:, 0].amin(), both[:, 1].amax()


def _by_block(where: Any) -> Any:
    """How many are true in each block of BLOCK; the last may be shorter."""
    import torch

    whole = where.numel() // BLOCK * BLOCK
    counts = where[:whole].view(-1, BLOCK).sum(dim=1)
    return torch.cat([counts, where[whole:].sum().reshape(1)]) if whole < where.numel() else counts
