"""What is promoted: the best candidate of a run, or what a workspace holds, with its task."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from cuda_agent.agent.best import BestRecord
from cuda_agent.agent.storage.rundir import RunDirectory
from cuda_agent.agent.tools.judged import FAILURES
from cuda_agent.core.bench import BenchManifest
from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.errors import StoreError, UsageError
from cuda_agent.core.records import Candidate, Evaluation, Task, Trajectory
from cuda_agent.workspace import layout


@dataclass(frozen=True)
class Subject:
    """`options` are those of the run, which the gate overrides; `evaluations`: what was already said of candidates."""

    directory: Path
    task: Task
    candidate: Candidate
    options: JudgeOptions
    evaluations: tuple[Evaluation, ...] = ()


def load_subject(path: Path) -> Subject:
    """Raises UsageError where there is no candidate, StoreError where it can't be read."""
    if (path / ".cuda-agent").is_dir():
        workspace = layout.open_workspace(path)
        candidate = workspace.snapshot()
        if "model_new.py" not in candidate.files:
            raise UsageError(f"{path} has no model_new.py yet", "Write it, and the kernels under kernels/, first")
        return Subject(path, workspace.task, candidate, workspace.options)
    if (path / BenchManifest.file_name).is_file():
        raise UsageError(f"{path} is a benchmark of several tasks", f"Promote one of them: {path}/tasks/ID")
    task, options, _ = RunDirectory(path).read_start()
    found = _best(path)
    if found is None:
        raise UsageError(f"The run in {path} has no candidate", "Choose a run that ended with one")
    candidate, evaluation = found
    if evaluation is not None and evaluation.comparison is not None:
        cause = f"The run in {path} holds a comparison ({evaluation.comparison}), no CUDA extension"
        raise UsageError(cause, "Only CUDA extensions are promoted")
    layout.check_candidate(candidate)
    _check_unedited(layout.Workspace(path / "workspace", task, options.judge), candidate)
    said = () if evaluation is None else (evaluation,)
    return Subject(path, task, candidate, options.judge, (*said, *_failures(path)))


def _check_unedited(workspace: layout.Workspace, best: Candidate) -> None:
    """Whoever edits an ended run's workspace and promotes the run would believe that the edit was looked at."""
    place = workspace.directory
    if not (place.parent / Trajectory.file_name).is_file() or not (place / ".cuda-agent").is_dir():
        return
    if workspace.snapshot().digest != best.digest:
        cause = f"{place} was changed since the run ended, and isn't its best candidate any more"
        raise UsageError(cause, f"Promote what it holds now, {place}, or undo the change")


def _failures(path: Path) -> tuple[Evaluation, ...]:
    """Of earlier candidates of the run, and of its agents where it had several. A line that can't be read is none."""
    found = []
    for pattern in (f"logs/{FAILURES}", f"seed/logs/{FAILURES}", f"agent-*/logs/{FAILURES}"):
        for file in sorted(path.glob(pattern)):
            for line in file.read_text(errors="replace").splitlines():
                with contextlib.suppress(StoreError):
                    found.append(Evaluation.from_json(line))
    return tuple(found)


def _best(path: Path) -> tuple[Candidate, Evaluation | None] | None:
    """Of a run that has ended, or of one that was killed."""
    if (path / Trajectory.file_name).is_file():
        trajectory = Trajectory.read(path)
        return None if trajectory.best is None else (trajectory.best, trajectory.evaluation)
    if (path / BestRecord.file_name).is_file():
        record = BestRecord.read(path)
        return record.candidate, record.evaluation
    return None


def rival(name: str, path: Path, subject: Subject) -> Candidate:
    """Another kernel for the same task. Raises UsageError where it is for another one."""
    other = load_subject(path)
    if other.task.source != subject.task.source:
        raise UsageError(f"The kernel {name} in {path} is for another task ({other.task.name})", "Choose its own")
    return other.candidate
