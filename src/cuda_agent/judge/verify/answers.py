"""A task's answers as the judge compares them: in pieces, of which each holds a part of every output."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from cuda_agent.core.enums import OracleWay
from cuda_agent.workers.requests import Spec

#: elements of a piece of a large task, a multiple of what is compared as one (`measured.BLOCK`, `places.TILE`).
PIECE = 1 << 22


class Stretch(NamedTuple):
    """Which elements of each output a piece holds."""

    begins: tuple[int, ...]
    counts: tuple[int, ...]


def parts(sizes: Sequence[int]) -> Iterator[Stretch]:
    """Yields the parts of outputs of these sizes: the largest outputs first, and those of one size together, since the
    slices of an answer are made in order."""
    for size in sorted(set(sizes), reverse=True):
        for begin in range(0, max(size, 1), PIECE):
            counts = tuple(min(PIECE, size - begin) if own == size else 0 for own in sizes)
            yield Stretch(tuple(begin if count else 0 for count in counts), counts)


class Piece(NamedTuple):
    """A part of each output in row-major order. `begins` says which element is its first."""

    begins: tuple[int, ...]
    eager: list[Any]
    policy: list[Any]
    oracle: list[Any]


class Answer(Protocol):
    """The task's answer to one set of inputs. It is valid until other inputs or weights are drawn."""

    @property
    def spec(self) -> Spec: ...

    @property
    def shapes(self) -> Sequence[Sequence[int]]: ...

    def pieces(self, *, only_eager: bool = False) -> Iterator[Piece]:
        """Yields the pieces in order. A piece is valid until the next one. With `only_eager`, `policy` and `oracle` may
        be eager's."""
        ...


@dataclass(frozen=True)
class WholeAnswer:
    """An answer in one piece."""

    spec: Spec
    eager: list[Any]
    policy: list[Any]
    oracle: list[Any]
    oracle_kind: str
    way: OracleWay = OracleWay.WHOLE

    @property
    def shapes(self) -> Sequence[Sequence[int]]:
        return [tensor.shape for tensor in self.eager]

    def pieces(self, *, only_eager: bool = False) -> Iterator[Piece]:
        flat = [[tensor.reshape(-1) for tensor in tensors] for tensors in (self.eager, self.policy, self.oracle)]
        yield Piece((0,) * len(self.eager), *flat)


@dataclass(frozen=True)
class EagerAlone:
    """An answer of which eager's is the truth."""

    answer: Answer

    @property
    def spec(self) -> Spec:
        return self.answer.spec

    @property
    def shapes(self) -> Sequence[Sequence[int]]:
        return self.answer.shapes

    def pieces(self, *, only_eager: bool = False) -> Iterator[Piece]:
        for piece in self.answer.pieces(only_eager=True):
            yield Piece(piece.begins, piece.eager, piece.eager, piece.eager)


#: gives the part of an output that lies where a part of eager's does, from the element on that is named.
Source = Callable[[int, int, Any], Any]


def parts_of(tensors: Sequence[Any]) -> Source:
    """Returns a source of parts of these outputs, which are in row-major order."""
    flat = [tensor.reshape(-1) for tensor in tensors]
    return lambda output, begin, like: flat[output][begin : begin + like.numel()]


def eager_copy(answer: Answer) -> list[Any]:
    """Copies eager's outputs, so that the next answer doesn't overwrite them."""
    import torch

    whole: list[Any] = []
    for piece in answer.pieces(only_eager=True):
        for index, (begin, part) in enumerate(zip(piece.begins, piece.eager, strict=True)):
            if len(whole) <= index:
                whole.append(torch.empty(tuple(answer.shapes[index]), dtype=part.dtype, device=part.device))
            whole[index].view(-1)[begin : begin + part.numel()].copy_(part)
    return whole


def eager_against_oracle(answer: Answer, *, atol: float, rtol: float) -> str:
    """Returns in which output eager is beyond the published bound from the oracle, "" where it is in none."""
    count, largest = [0] * len(answer.shapes), [0.0] * len(answer.shapes)
    for piece in answer.pieces():
        for index, (e, o) in enumerate(zip(piece.eager, piece.oracle, strict=True)):
            apart = (e.double() - o.double()).abs() if e.is_floating_point() else (e != o).double()
            bound = atol + rtol * o.double().abs() if e.is_floating_point() else 0.0
            outside = apart.nan_to_num(0.0) > bound
            count[index] += int(outside.sum())
            largest[index] = max(largest[index], float((apart.nan_to_num(0.0) * outside).amax()) if e.numel() else 0.0)
    index = max(range(len(count)), key=lambda i: count[i] / max(1, math.prod(answer.shapes[i])), default=0)
    if not any(count):
        return ""
    share = count[index] / math.prod(answer.shapes[index])
    return f"eager and the float64 answer differ in {share:.1%} of output {index}, by up to {largest[index]:.3g}"
