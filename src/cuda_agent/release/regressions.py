"""Everything on which a candidate for a task ever failed, to be tried again: a file per task, which only grows."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from cuda_agent.core.config import Regression
from cuda_agent.core.errors import StoreError
from cuda_agent.core.files import append_lines
from cuda_agent.core.record import Record
from cuda_agent.core.records import Evaluation


class Failure(Record):
    """A line of the file. `batch`: the size of the batch dimension, where it wasn't the task's own."""

    regression: Regression
    batch: int | None = None
    candidate: str
    reason: str
    when: str


def regressions_file(registry: Path, task_key: str) -> Path:
    return registry / "regressions" / f"{task_key}.jsonl"


def read_failures(registry: Path, task_key: str) -> tuple[Failure, ...]:
    """In the order in which they were found; a last line that a kill cut short is none. Raises StoreError."""
    path = regressions_file(registry, task_key)
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"Can't read {path}: {error}", "Restore it from the registry's history") from None
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(Failure.model_validate_json(line))
        except ValidationError:
            if number < len(lines):
                raise StoreError(f"{path}, line {number} is no failure", "Restore it") from None
    return tuple(found)


def remember(
    registry: Path, task_key: str, evaluations: Iterable[Evaluation], batch: int | None = None
) -> tuple[Failure, ...]:
    """Adds what these failed on and the file doesn't hold yet; what is new. Raises StoreError."""
    known = {(failure.regression, failure.batch) for failure in read_failures(registry, task_key)}
    new: dict[tuple[Regression, int | None], Failure] = {}
    for evaluation in evaluations:
        key = evaluation.failing, batch
        if key[0] is None or key in known:
            continue
        when = datetime.now(UTC).isoformat(timespec="seconds")
        new[key[0], batch] = Failure(
            regression=key[0], batch=batch, candidate=evaluation.candidate_digest, reason=evaluation.reason[:500],
            when=when,
        )  # fmt: skip
    if new:
        append_lines(regressions_file(registry, task_key), [failure.model_dump_json() for failure in new.values()])
    return tuple(new.values())
