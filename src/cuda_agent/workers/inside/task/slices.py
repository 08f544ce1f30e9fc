"""Finds out whether a task can be answered slice by slice, so that its float64 answer needs little memory.

A task is row-wise along a dimension if the answer to a slice of its inputs is that slice of its answer, as with a batch
of images or tokens. This is tried with two comparisons. In eager, two slices must equal those of the whole answer, up
to rounding. In float64, where rounding excuses nothing, a slice must equal a part of the answer to a longer slice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cuda_agent.core.errors import OutOfMemory
from cuda_agent.workers.inside.task.indices import CheckedIndices

#: the least number of slices of a task, and the bytes in float64 of a slice's inputs and outputs at the most.
_COUNT, _SLICE_BYTES = 16, 256 << 20
#: the largest difference of two answers to the same rows, relative to their norm: in eager, where the products of two
#: shapes may be rounded to TF32 or 16 bits, and in float64.
_EAGER, _EXACT = 2e-2, 1e-10
#: the number of dimensions that are tried.
_DIMENSIONS = 2

#: answers a list of tensors with a list of tensors.
Answer = Callable[[list[Any]], list[Any]]


@dataclass(frozen=True)
class Slicing:
    """A way to cut a task: along `dim`, which has `rows` entries in each output and in each of the inputs `cut`, into
    `count` slices."""

    dim: int
    rows: int
    cut: tuple[int, ...]
    count: int = _COUNT

    @property
    def length(self) -> int:
        """The rows of a slice; the last may be shorter."""
        return -(-self.rows // self.count)

    def begins(self) -> range:
        return range(0, self.rows, self.length)

    def inputs(self, tensors: Sequence[Any], begin: int, length: int) -> list[Any]:
        """Returns the inputs of a slice. Those that aren't cut are whole."""
        return [t.narrow(self.dim, begin, length) if i in self.cut else t for i, t in enumerate(tensors)]

    def outputs(self, tensors: Sequence[Any], begin: int, length: int) -> list[Any]:
        return [tensor.narrow(self.dim, begin, length) if self.cut else tensor for tensor in tensors]


#: The way of a task that can't be cut.
WHOLE = Slicing(0, 1, ())


def find_slices(inputs: Sequence[Any], outputs: Sequence[Any], eager: Answer, exact: Answer) -> Slicing:
    """Returns a way to cut the task, or WHOLE. `outputs` are the answers of `eager` to the inputs; `exact` answers in
    float64. Raises OutOfMemory."""
    for way in _ways(inputs, outputs):
        try:
            with CheckedIndices():
                if _holds(way, inputs, outputs, eager) and _is_exact(way, inputs, exact):
                    return way
        except OutOfMemory:
            raise
        except Exception:  # noqa: BLE001 - task code, on shapes that it doesn't know
            continue
    return WHOLE


def _ways(inputs: Sequence[Any], outputs: Sequence[Any]) -> Iterator[Slicing]:
    for dim in range(_DIMENSIONS):
        sizes = {tensor.shape[dim] if tensor.ndim > dim else 0 for tensor in outputs}
        rows = sizes.pop() if len(sizes) == 1 else 0
        cut = tuple(i for i, tensor in enumerate(inputs) if tensor.ndim > dim and tensor.shape[dim] == rows)
        if rows > 1 and cut:
            # A square weight may have as many rows as the batch.
            for some in (cut, cut[:1])[: len(cut)]:
                elements = sum(tensor.numel() for tensor in (*outputs, *(inputs[i] for i in some)))
                yield Slicing(dim, rows, some, max(_COUNT, -(-8 * elements // _SLICE_BYTES)))


def _holds(way: Slicing, inputs: Sequence[Any], outputs: Sequence[Any], eager: Answer) -> bool:
    length = way.length
    return all(
        _are_alike(eager(way.inputs(inputs, begin, length)), way.outputs(outputs, begin, length), _EAGER)
        for begin in (0, way.rows - length)
    )


def _is_exact(way: Slicing, inputs: Sequence[Any], exact: Answer) -> bool:
    length = way.length
    longer = exact(way.inputs(inputs, 0, 2 * length if 2 * length <= way.rows else way.rows))
    return _are_alike(exact(way.inputs(inputs, 0, length)), way.outputs(longer, 0, length), _EXACT)


def _are_alike(mine: Sequence[Any], theirs: Sequence[Any], bound: float) -> bool:
    return len(mine) == len(theirs) and all(_is_alike(a, b, bound) for a, b in zip(mine, theirs, strict=True))


def _is_alike(mine: Any, theirs: Any, bound: float) -> bool:
    if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
        return False
    if not mine.is_floating_point():
        return bool((mine != theirs).double().mean() <= bound)
    finite = mine.isfinite() & theirs.isfinite()
    same = (mine == theirs) | (mine.isnan() & theirs.isnan())
    apart, norm = ((t.where(finite, 0.0).double()).norm() for t in (mine - theirs, theirs))
    return bool((finite | same).all() and apart <= bound * norm)
