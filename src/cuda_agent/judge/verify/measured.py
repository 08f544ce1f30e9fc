"""The result of comparing one output: measured errors, and whether they pass."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

#: elements of a block, whose error is also measured by itself.
BLOCK = 4096
#: a candidate's error may be so many times PyTorch's own.
SLACK = 4.0


@dataclass(frozen=True)
class Errors:
    """Errors of one program on one output, over the whole output and over its worst block. For floating point they are
    relative L2 errors, for integers the share of values that differ."""

    whole: float
    block: float


@dataclass(frozen=True)
class EagerDistance:
    """How far the candidate is from eager at places where eager is finite and the oracle isn't. `outside` elements are
    beyond the published tolerance, the worst by `largest`; `square` and `norm` are sums of squares of c - e and of
    e."""

    elements: int = 0
    outside: int = 0
    largest: float = 0.0
    square: float = 0.0
    norm: float = 0.0

    @property
    def relative(self) -> float:
        """The relative L2 distance."""
        return math.sqrt(self.square / self.norm) if self.norm > 0 else 0.0

    def plus(self, other: Self) -> Self:
        """Returns the distance over the places of both."""
        sums = [getattr(self, name) + getattr(other, name) for name in ("elements", "outside", "square", "norm")]
        return type(self)(sums[0], sums[1], max(self.largest, other.largest), sums[2], sums[3])


@dataclass(frozen=True)
class Measured:
    """The measurement of one output. `failure` is a defect that no tolerance excuses: a NaN, an integer out of
    range."""

    elements: int
    max_abs_error: float
    max_rel_error: float
    candidate: Errors
    eager: Errors
    #: |c - o| of the element beyond the published bound that is worst, and what it is allowed (see `places`); for
    #: integers the share that differs, and its bound.
    beyond: float
    excuse: float
    dtype: str
    failure: str = ""
    #: the output holds integers or booleans, so that `discrete.rule_discrete` rules on it.
    discrete: bool = False
    #: share of values beyond the published tolerance; of integers, that differ from eager's. They may be the oracle's.
    apart: float = 0.0
    #: relative errors of candidate and eager in the worst row or column, where eager's are large.
    line: tuple[float, float] = (0.0, 0.0)
    #: at places without an oracle.
    alone: EagerDistance = EagerDistance()


@dataclass(frozen=True)
class Ruling:
    """Whether one output passes. `error` and `budget` belong to the scale (whole output or worst block) that is nearer
    its budget. `over_budget`: the answer meets the published tolerance, only its error exceeds the budget."""

    passed: bool
    error: float
    eager_error: float
    budget: float
    reason: str = ""
    over_budget: bool = False
    #: eager is so wrong somewhere that the budget is far above what the type can do.
    loose: bool = False


def pool(measured: Sequence[Measured]) -> Errors:
    """Returns eager's largest errors over several trials of one output."""
    return larger(*(one.eager for one in measured))


def larger(*errors: Errors) -> Errors:
    """The larger of each."""
    return Errors(max(one.whole for one in errors), max(one.block for one in errors))
