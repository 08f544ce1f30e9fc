"""What the stages have left in a data set's folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from cuda_agent.core.errors import StoreError, UsageError
from cuda_agent.core.stack import Stack
from cuda_agent.tasks.decontaminate.stage import SIMILARITY_FILE
from cuda_agent.tasks.records import DatasetTask, Measurement, MeasurementFile, Similarity
from cuda_agent.tasks.store import read_lines

CANDIDATES_FILE = "candidates.jsonl"
MEASUREMENTS = "measurements-*.jsonl"


@dataclass(frozen=True)
class Measured:
    """One file of measurements: the last word on each task, by its key. `name`: what its file name says of the stack."""

    name: str
    stack: Stack
    by_key: dict[str, Measurement]


def read_candidates(folder: Path) -> list[DatasetTask]:
    """In order of their numbers, each key once. Raises UsageError where there is none."""
    path = folder / CANDIDATES_FILE
    if not path.exists():
        raise UsageError(f"{folder} holds no candidates", f"Run: cuda-agent tasks compose {folder}")
    found = {task.task.key: task for task in reversed(read_lines(path, DatasetTask))}
    if not found:
        raise UsageError(f"{path} is empty", f"Run: cuda-agent tasks compose {folder}")
    return sorted(found.values(), key=lambda task: (task.composer, task.number))


def read_measured(folder: Path, stack: str | None = None) -> Measured | None:
    """The folder's measurements on the stack whose name begins with `stack`; without it, of the only one. None where
    there is no file. Raises UsageError where it isn't clear which, StoreError."""
    files = sorted(folder.glob(MEASUREMENTS))
    names = {path: path.stem.removeprefix("measurements-") for path in files}
    if stack is not None:
        files = [path for path in files if names[path].startswith(stack)]
        if not files:
            raise UsageError(
                f"{folder} has no measurements on stack {stack}", f"There are: {', '.join(names.values())}"
            )
    if len(files) > 1:
        raise UsageError(
            f"{folder} has measurements on several stacks: {', '.join(names[path] for path in files)}",
            "Choose one with --stack",
        )
    return _read(files[0], names[files[0]]) if files else None


def _read(path: Path, name: str) -> Measured:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise StoreError(f"Can't read {path}: {error.strerror}", "Check the path") from None
    lines = raw[: raw.rfind(b"\n") + 1].splitlines()
    if not lines:
        raise StoreError(f"{path} is empty", "Remove it and filter again")
    head = MeasurementFile.from_json(lines[0].decode(), where=f"{path}, line 1")
    by_key: dict[str, Measurement] = {}
    for number, line in enumerate(lines[1:], 2):
        try:
            measurement = Measurement.model_validate_json(line)
        except ValidationError as error:
            raise StoreError(f"{path}, line {number}: {error.errors()[0]['msg']}", "Restore the file") from None
        by_key[measurement.task_key] = measurement
    return Measured(name, head.stack, by_key)


def read_similarities(folder: Path) -> dict[str, Similarity] | None:
    """By the tasks' keys; None where nothing was compared yet."""
    path = folder / SIMILARITY_FILE
    return {line.task_key: line for line in read_lines(path, Similarity)} if path.exists() else None


def passing(tasks: Sequence[DatasetTask], measured: Measured | None) -> list[DatasetTask]:
    """Those that passed the filters; all, where nothing was measured yet."""
    if measured is None:
        return list(tasks)
    return [task for task in tasks if (m := measured.by_key.get(task.task.key)) is not None and m.passed]


def graphs_of(measured: Measured | None) -> dict[str, str]:
    """Hashes of operator graphs by the tasks' keys."""
    if measured is None:
        return {}
    return {key: m.graph_hash for key, m in measured.by_key.items() if m.graph_hash is not None}
