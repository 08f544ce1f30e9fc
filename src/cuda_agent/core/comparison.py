"""The records of `compare`, which puts benchmark runs side by side."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cuda_agent.core.bench import Estimate
from cuda_agent.core.record import Record, StoredRecord

Compared = Literal["faster", "slower", "same", "gained", "lost", "neither", "missing"]


class Side(Record):
    """One run. `stack_differences` are differences from the first run's stack, with which times can't be compared.
    `option_differences` are other options, and `notes` are other differences, such as another GPU of the same kind."""

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
    """One task in one run. `faster` is the first run's latency / this run's. `comparison` is `faster` or `slower` where
    the intervals of both latencies don't overlap, and `same` where they do. It is `gained`, `lost` or `neither` where
    one or both didn't pass, and `missing` where a run hasn't done the task."""

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
    """A later run against the first one. `ours` is the geometric mean of first latency / this latency over tasks that
    passed in both, with its interval from a bootstrap over tasks. `speedups` maps a baseline to the geometric mean over
    all tasks of (this run's speed-up / the first one's), where a failure counts as 1.0. A difference is significant
    where the interval excludes 1."""

    tasks: int
    both_passed: int
    ours: Estimate
    speedups: dict[str, Estimate]
    comparisons: dict[str, int]


class Comparison(StoredRecord):
    """Runs side by side. The first run is the reference."""

    file_name = "comparison.json"
    sides: tuple[Side, ...] = Field(min_length=2)
    rows: tuple[Row, ...]
    paired: tuple[Paired, ...]

    @property
    def same_stack(self) -> bool:
        return not any(side.stack_differences for side in self.sides)
