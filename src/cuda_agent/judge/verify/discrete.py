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

from typing import Any

from cuda_agent.judge.verify.measured import BLOCK, SLACK, Errors, Measured, Ruling, larger

#: largest share of values that equal none of PyTorch's answers, among those that aren't the most frequent value.
TIES = 1e-3
#: largest share of values that differ from eager's at the default flags, against which timed outputs are checked.
APART = 0.05
#: pieces consist of whole blocks, and their temporaries are small beside an output.
_PIECE = 1 << 22
_NONE = Errors(0.0, 0.0)
#: values that are counted as the most frequent one of an output in several pieces.
_MOST_USUAL = 8
#: types that torch can't order.
_EQUAL_ONLY = ("uint16", "uint32", "uint64")


class Discrete:
    """The comparison of one output of integers, booleans or complex numbers, piece by piece. Complex numbers, and
    unsigned integers of two bytes and more, must be equal."""

    def __init__(self, elements: int, dtype: str, *, equal_only: bool) -> None:
        self._elements, self._dtype = elements, dtype
        self._equal_only = equal_only or dtype in _EQUAL_ONLY
        #: candidate's and eager's differences, and the candidate's from eager: in all, and in the worst block.
        self._counts = [(0, 0)] * 3
        self._saying = 0
        #: values that were the most frequent ones of a part.
        self._usual: list[Any] = []
        #: the smallest and the largest value of the candidate, and of PyTorch's answers.
        self._mine: tuple[Any, Any] | None = None
        self._theirs: tuple[Any, Any] | None = None

    def add(self, c: Any, e: Any, p: Any, o: Any) -> None:
        """Adds the next parts, flat. Each but the last is a multiple of BLOCK elements."""
        if self._equal_only:
            total, most = self._counts[0]
            self._counts[0] = (total + int((c != e).sum()), most)
            return
        is_same = all(e.equal(other) for other in (c, p, o))
        if is_same and e.numel() == self._elements:
            return
        self._saying += self._count_saying(e)
        self._mine = _range([c], self._mine)
        self._theirs = _range([e, p, o], self._theirs)
        # Where only eager's own answers differ, the other trials are compared with them.
        if not is_same:
            found = _differences([c, e, p, o])
            pairs = zip(self._counts, found, strict=True)
            self._counts = [(total + count, max(most, block)) for (total, most), (count, block) in pairs]

    def _count_saying(self, values: Any) -> int:
        """Returns how many values of a part differ from the most frequent one if that is more than half of them, else
        at least half."""
        import torch

        values = values.to(torch.uint8) if values.dtype == torch.bool else values
        median = values.median()
        if not any(bool(median == known) for known in self._usual) and len(self._usual) < _MOST_USUAL:
            self._usual.append(median)
        return min(int((values != value).sum()) for value in (values.new_zeros(()), median, *self._usual))

    def result(self) -> Measured:
        elements, size = self._elements, min(BLOCK, self._elements)
        differ, failure = self._counts[0][0], ""
        if self._equal_only:
            failure = _said(differ, elements, self._dtype) if differ else ""
            mine = own = apart = _NONE
        else:
            mine, own, apart = (Errors(t / elements, m / size) if t else _NONE for t, m in self._counts)
            if self._mine and self._theirs and differ:
                (low, high), (least, most) = self._mine, self._theirs
                if low < least or high > most:
                    failure = f"values of type {self._dtype} from {low} to {high} are beyond the range of PyTorch's"
                    failure += f", {least} to {most}"
        is_known = any(total for total, _ in self._counts) and not self._equal_only
        excuse = TIES * self._saying / elements if is_known else TIES
        error = 1.0 if failure else 0.0
        return Measured(
            elements, error, error, mine, own, mine.whole, excuse, self._dtype, failure, discrete=True,
            apart=apart.whole,
        )  # fmt: skip


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
    """Returns why timed integers couldn't be compared with eager's, "" where they can."""
    if not measured.discrete or measured.apart * TIES <= APART * measured.excuse:
        return ""
    count = round(measured.apart * measured.elements)
    return f"{_said(count, measured.elements, measured.dtype)} from eager's, though they may be the oracle's"


def _said(count: int, elements: int, dtype: str) -> str:
    return f"{count} of {elements} values of type {dtype} differ"


def _differences(flat: list[Any]) -> list[tuple[int, int]]:
    """Returns the counts of differences, in all and in the worst block: the candidate's from all of PyTorch's answers,
    PyTorch's own from each other, and the candidate's from eager's."""
    import torch

    blocks: tuple[list[Any], ...] = ([], [], [])
    for c, e, p, o in zip(*(tensor.split(_PIECE) for tensor in flat), strict=True):
        others = c != e
        for where, counts in zip((others & (c != o) & (c != p), (p != e) | (o != e), others), blocks, strict=True):
            counts.append(_by_block(where))
    found = (torch.stack([counts.sum(), counts.max()]).tolist() for counts in map(torch.cat, blocks))
    return [(total, most) for total, most in found]


def _range(tensors: list[Any], known: tuple[Any, Any] | None) -> tuple[Any, Any]:
    """Returns the smallest and the largest value of all tensors, and of the range that is known."""
    ends = [end.item() for tensor in tensors for end in tensor.aminmax()]
    return min(*ends, *(known or ends)), max(*ends, *(known or ends))


def _by_block(where: Any) -> Any:
    """Returns how many values are true in each block of BLOCK. The last block may be shorter."""
    import torch

    whole = where.numel() // BLOCK * BLOCK
    counts = where[:whole].view(-1, BLOCK).sum(dim=1)
    return torch.cat([counts, where[whole:].sum().reshape(1)]) if whole < where.numel() else counts
