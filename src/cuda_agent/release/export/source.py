"""Reads what is exported: the best candidate of a run, or a promoted one, with its evaluation."""

from dataclasses import dataclass, replace
from pathlib import Path

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Verdict
from cuda_agent.core.errors import CudaAgentError, StoreError, UsageError
from cuda_agent.core.records import Candidate, Evaluation, Task, Trajectory
from cuda_agent.release import evidence
from cuda_agent.release.records import Promotion
from cuda_agent.release.subject import best_of_run


class NotPassed(CudaAgentError):
    """The run has no candidate that passed."""

    exit_code = 9


@dataclass(frozen=True)
class Finished:
    """A candidate that passed. `evaluation` is that of exactly these files and this task. One that was promoted has
    passed a gate's own rule on its speed."""

    task: Task
    options: JudgeOptions
    candidate: Candidate
    evaluation: Evaluation
    promoted: bool = False


def read_finished(directory: Path) -> Finished:
    """Reads the candidate of a run or of a registry's entry. Raises NotPassed, UsageError where the directory is
    neither, StoreError where it can't be read."""
    if (directory / Promotion.file_name).is_file():
        return _read_entry(directory.resolve())
    task, options, candidate, evaluation = best_of_run(directory)
    if candidate is None and not (directory / Trajectory.file_name).is_file():
        raise UsageError(f"The run in {directory} hasn't judged a candidate yet", f"cuda-agent resume {directory}")
    if candidate is None or evaluation is None:
        raise NotPassed(f"{directory} holds no judged candidate", f"See cuda-agent show {directory}")
    return _finished(directory, task, options, candidate, evaluation)


def _read_entry(directory: Path) -> Finished:
    """Reads an entry of the registry whose evidence is unchanged. `promoted --check` checks the signature and the
    stack. Raises NotPassed, StoreError."""
    registry, remedy = directory.parent.parent, "Promote it again, or export another entry"
    events = [event for event in evidence.history(registry) if event.entry == directory.name]
    entry = next((one for one in evidence.entries(registry) if one.digest == directory.name), None)
    if entry is None or entry.promotion is None or not any(event.event == "promoted" for event in events):
        raise NotPassed(f"The registry {registry} has no history of {directory.name}", remedy)
    wrong = entry.revoked.reason if entry.revoked is not None else evidence.fault(registry, entry)
    if wrong:
        raise NotPassed(f"The promotion in {directory} isn't valid any more: {wrong}", remedy)
    place = directory / evidence.CANDIDATE
    options = JudgeOptions(device=entry.promotion.device, precision=entry.promotion.precision)
    try:
        files = {path.relative_to(place).as_posix(): path.read_text() for path in place.rglob("*") if path.is_file()}
        task = Task.from_json((directory / "task.json").read_text())
        evaluation = Evaluation.from_json((directory / "evaluations" / "process-1.json").read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"Can't read the entry {directory}: {error}", remedy) from None
    return replace(_finished(directory, task, options, Candidate(files=files), evaluation), promoted=True)


def _finished(
    directory: Path, task: Task, options: JudgeOptions, candidate: Candidate, evaluation: Evaluation
) -> Finished:
    """Raises NotPassed."""
    if evaluation.verdict is not Verdict.PASSED:
        said = f"{evaluation.verdict.value}: {evaluation.reason}" if evaluation.reason else evaluation.verdict.value
        raise NotPassed(f"The best candidate of {directory} didn't pass ({said})", "Only what passed is exported")
    if evaluation.candidate_digest != candidate.digest or evaluation.task_key != task.key:
        other = "task" if evaluation.task_key != task.key else "candidate"
        cause = f"The evaluation in {directory} is that of another {other}"
        raise NotPassed(cause, "Run it again, or judge it with cuda-agent replay")
    return Finished(task, options, candidate, evaluation)
