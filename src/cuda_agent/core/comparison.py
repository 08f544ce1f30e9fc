"""Benchmark runs side by side: what `compare` finds."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cuda_agent.core.bench import Estimate
from cuda_agent.core.record import Record, StoredRecord

Compared = Literal["faster", "slower", "same", "gained", "lost", "neither", "missing"]


class Side(Record):
    """One run. `stack_differences`: what its stack has otherwise than the first one's, so that times may not be
    compared; `option_differences`: how it was asked otherwise; `notes`: what else differs, such as another GPU of the
    same kind."""

    directory: str
    policy: str
    commit: str | None
    started: str
    done: int
    tasks: int
    passed: int
    stack_differences: tuple[str, ...] = ()
    option_differences: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Cell(Record):
    """One task in one run. `faster`: how many times as fast ours is as the first run's; above 1 faster. `verdict` of
    the comparison: `faster` and `slower` where the intervals of both latencies don't overlap, `same` where they do,
    `gained` and `lost` where only one passed, `neither`, or `missing` where a run hasn't done the task."""

    result: str
    latency_us: float | None = None
    low_us: float | None = None
    high_us: float | None = None
    faster: float | None = None
    comparison: Compared = "same"


class Row(Record):
    task: str
    cells: tuple[Cell, ...]


class Paired(Record):
    """A later run against the first one. `ours`: geometric mean of first latency / this latency over tasks that passed
    in both, with its interval by bootstrap over tasks. `speedups`: by baseline, geometric mean over all tasks of (this
    run's speed-up / the first one's), failures as 1.0. Significant where the interval leaves out 1."""

    tasks: int
    both_passed: int
    ours: Estimate
    speedups: dict[str, Estimate]
    comparisons: dict[str, int]


class Comparison(StoredRecord):
    """Runs side by side; the first is what the others are compared with."""

    file_name = "comparison.json"
    sides: tuple[Side, ...] = Field(min_length=2)
    rows: tuple[Row, ...]
    paired: tuple[Paired, ...]

    @property
    def same_stack(self) -> bool:
        return not any(side.stack_differences for side in self.sides)
