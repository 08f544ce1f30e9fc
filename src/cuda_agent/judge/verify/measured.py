"""What a comparison says of one output: measured errors, and whether they pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: how much worse than PyTorch's own error a candidate may be.
SLACK = 4.0


@dataclass(frozen=True)
class Errors:
    """Of one program on one output, over all of it and over its worst block: relative L2 errors of floating point,
    shares of integers that differ."""

    whole: float
    block: float


@dataclass(frozen=True)
class Measured:
    """One output, measured. `failure` is what no tolerance excuses (a NaN, an integer out of range)."""

    elements: int
    max_abs_error: float
    max_rel_error: float
    candidate: Errors
    eager: Errors
    #: largest |c - o| among elements beyond the published bound, and the excuse 4·max|p - o|; of integers the share
    #: that differs, and the most that may.
    beyond: float
    excuse: float
    dtype: str
    failure: str = ""
    #: integers or booleans: `discrete.rule_discrete` says whether it passes.
    discrete: bool = False
    #: the share of integers that aren't eager's, though they may be the oracle's.
    apart: float = 0.0


@dataclass(frozen=True)
class Ruling:
    """Whether one output passes; `error` and `budget` are those of the scale (whole or block) that is nearer its
    budget."""

    passed: bool
    error: float
    eager_error: float
    budget: float
    reason: str = ""


def pool(measured: Sequence[Measured]) -> Errors:
    """Eager's largest errors over several trials of one output."""
    return larger(*(one.eager for one in measured))


def larger(*errors: Errors) -> Errors:
    """The larger of each."""
    return Errors(max(one.whole for one in errors), max(one.block for one in errors))
