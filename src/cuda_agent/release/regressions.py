"""The inputs on which candidates for a task have failed, to be tried again: a file for each task, which only grows."""

from collections.abc import Iterable
from pathlib import Path

from cuda_agent.core.config import Regression
from cuda_agent.core.lines import append, read_lines
from cuda_agent.core.record import Record, now
from cuda_agent.core.records import Evaluation


class KnownFailure(Record):
    """A line of the file. `batch` is the size of the batch dimension where it wasn't the task's own."""

    regression: Regression
    batch: int | None = None
    candidate: str
    reason: str
    when: str


def regressions_file(registry: Path, task_key: str) -> Path:
    return registry / "regressions" / f"{task_key}.jsonl"


def read_failures(registry: Path, task_key: str) -> tuple[KnownFailure, ...]:
    """Returns the failures in the order in which they were found. Raises StoreError."""
    return tuple(read_lines(regressions_file(registry, task_key), KnownFailure, optional=True))


def remember(
    registry: Path, task_key: str, evaluations: Iterable[Evaluation], batch: int | None = None
) -> tuple[KnownFailure, ...]:
    """Adds the failures of evaluations that the file doesn't hold yet, and returns them. Raises StoreError."""
    known = {(failure.regression, failure.batch) for failure in read_failures(registry, task_key)}
    new: dict[tuple[Regression, int | None], KnownFailure] = {}
    for evaluation in evaluations:
        key = evaluation.failing, batch
        if key[0] is None or key in known:
            continue
        new[key[0], batch] = KnownFailure(
            regression=key[0], batch=batch, candidate=evaluation.candidate_digest, reason=evaluation.reason[:500],
            when=now(),
        )  # fmt: skip
    append(regressions_file(registry, task_key), new.values())
    return tuple(new.values())
