"""Reads the files of the stages in a dataset's folder."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cuda_agent.core.errors import UsageError
from cuda_agent.core.lines import read_lines
from cuda_agent.tasks.decontaminate.stage import SIMILARITY_FILE
from cuda_agent.tasks.filter.measurements import Measurements, read_all
from cuda_agent.tasks.filter.run import read_candidates
from cuda_agent.tasks.records import DatasetTask, Similarity, TaskFinding


def read_tasks(folder: Path) -> list[DatasetTask]:
    """Returns the candidates in order of their numbers, each key once. Raises UsageError where there is none."""
    found = {task.task.key: task for task in reversed(read_candidates(folder))}
    if not found:
        raise UsageError(f"{folder} has no candidates", f"Run: cuda-agent tasks compose {folder}")
    return sorted(found.values(), key=lambda task: (task.composer, task.number))


@dataclass(frozen=True)
class Stages:
    """The files of a folder's stages. Stages that weren't run yet have None; `clean` passed those that were."""

    candidates: list[DatasetTask]
    measured: Measurements | None
    similarities: dict[str, Similarity] | None

    @property
    def passed(self) -> list[DatasetTask]:
        return passing(self.candidates, self.measured)

    @property
    def found_later(self) -> dict[str, TaskFinding] | None:
        """What decontamination found, by task key."""
        if self.similarities is None:
            return None
        return {key: line.finding for key, line in self.similarities.items() if line.finding is not None}

    @property
    def clean(self) -> list[DatasetTask]:
        """The tasks that passed the filters and both comparisons."""
        known = self.similarities
        if known is None:
            return self.passed
        return [t for t in self.passed if t.task.key in known and known[t.task.key].finding is None]


def read_stages(folder: Path, stack: str | None = None) -> Stages:
    """Reads a folder. Raises UsageError where it has no candidates or several stacks match, StoreError."""
    path = folder / SIMILARITY_FILE
    similarities = {line.task_key: line for line in read_lines(path, Similarity)} if path.exists() else None
    return Stages(read_tasks(folder), measured_on(folder, stack), similarities)


def measured_on(folder: Path, stack: str | None = None) -> Measurements | None:
    """Returns the folder's measurements on the stack whose name begins with `stack`, or without it those on the only
    stack. Returns None where nothing was measured. Raises UsageError where several stacks match, StoreError."""
    found = {measured.stack_name: measured for measured in read_all(folder)}
    chosen = {name: measured for name, measured in found.items() if stack is None or name.startswith(stack)}
    if not found and stack is None:
        return None
    if len(chosen) != 1:
        raise UsageError(
            f"{folder} has measurements on {len(chosen)} stacks{'' if stack is None else f' named {stack}'}",
            f"Choose one with --stack: {', '.join(found)}" if found else f"Run: cuda-agent tasks filter {folder}",
        )
    return next(iter(chosen.values()))


def passing(tasks: Sequence[DatasetTask], measured: Measurements | None) -> list[DatasetTask]:
    """Returns the tasks that passed the filters, or all where nothing was measured yet."""
    if measured is None:
        return list(tasks)
    return [task for task in tasks if (m := measured.by_key.get(task.task.key)) is not None and m.passed]


def graphs_of(measured: Measurements | None) -> dict[str, str]:
    """Returns task key -> hash of the operator graph."""
    if measured is None:
        return {}
    return {key: m.graph_hash for key, m in measured.by_key.items() if m.graph_hash is not None}
