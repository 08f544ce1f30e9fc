"""Reads what is promoted: the best candidate of a run, or that of a workspace, with its task."""

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
    """A candidate for promotion. `options` are those of the run, which the gate overrides. `evaluations` are earlier
    ones of the run's candidates."""

    directory: Path
    task: Task
    candidate: Candidate
    options: JudgeOptions
    evaluations: tuple[Evaluation, ...] = ()


def load_subject(path: Path) -> Subject:
    """Reads a workspace or a run. Raises UsageError where it has no candidate, StoreError where it can't be read."""
    if (path / ".cuda-agent").is_dir():
        workspace = layout.open_workspace(path)
        held = workspace.snapshot()
        if "model_new.py" not in held.files:
            raise UsageError(f"{path} has no model_new.py yet", "Write it, and the kernels under kernels/, first")
        return Subject(path, workspace.task, held, workspace.options)
    task, options, candidate, evaluation = best_of_run(path)
    if candidate is None:
        raise UsageError(f"The run in {path} has no candidate", "Choose a run that ended with one")
    layout.check_candidate(candidate)
    _check_unedited(layout.Workspace(path / "workspace", task, options), candidate)
    judged = () if evaluation is None else (evaluation,)
    return Subject(path, task, candidate, options, (*judged, *_failures(path)))


def best_of_run(path: Path) -> tuple[Task, JudgeOptions, Candidate | None, Evaluation | None]:
    """Returns the task and the options of a run that has ended or was killed, with its best candidate and the
    evaluation of that, as far as it has them. Raises UsageError for a benchmark or a comparison, StoreError where the
    run can't be read."""
    if (path / BenchManifest.file_name).is_file():
        raise UsageError(f"{path} is a benchmark of several tasks", f"Choose one of them: {path}/tasks/ID")
    task, options, _ = RunDirectory(path).read_start()
    candidate = evaluation = None
    if (trajectory := Trajectory.find(path)) is not None:
        candidate, evaluation = trajectory.best, trajectory.evaluation
    elif (best := BestRecord.find(path)) is not None:
        candidate, evaluation = best.candidate, best.evaluation
    if evaluation is not None and evaluation.comparison is not None:
        cause = f"The run in {path} holds a comparison ({evaluation.comparison}), no CUDA extension"
        raise UsageError(cause, "Choose a run that made a CUDA extension")
    return task, options.judge, candidate, evaluation


def _check_unedited(workspace: layout.Workspace, best: Candidate) -> None:
    """Raises UsageError when the workspace of an ended run was edited, since the run's candidate would be promoted and
    not the edit."""
    place = workspace.directory
    if not (place.parent / Trajectory.file_name).is_file() or not (place / ".cuda-agent").is_dir():
        return
    if workspace.snapshot().digest != best.digest:
        cause = f"{place} was changed since the run ended, and isn't its best candidate any more"
        raise UsageError(cause, f"Promote what it holds now, {place}, or undo the change")


def _failures(path: Path) -> tuple[Evaluation, ...]:
    """Returns the evaluations of candidates that failed in the run and in its agents. Damaged lines are left out."""
    found = []
    for pattern in (f"logs/{FAILURES}", f"seed/logs/{FAILURES}", f"agent-*/logs/{FAILURES}"):
        for file in sorted(path.glob(pattern)):
            for line in file.read_text(errors="replace").splitlines():
                with contextlib.suppress(StoreError):
                    found.append(Evaluation.from_json(line))
    return tuple(found)


def rival(name: str, path: Path, subject: Subject) -> Candidate:
    """Reads another kernel for the same task. Raises UsageError where it is for another task."""
    other = load_subject(path)
    if other.task.source != subject.task.source:
        raise UsageError(f"The kernel {name} in {path} is for another task ({other.task.name})", "Choose its own")
    return other.candidate
