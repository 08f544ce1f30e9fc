"""The only place that decides how good a candidate is: `evaluate`."""

from __future__ import annotations

from collections.abc import Callable

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.records import Candidate, Evaluation, Task


def evaluate(
    task: Task,
    candidate: Candidate,
    options: JudgeOptions,
    progress: Callable[[str, str], None] | None = None,
    *,
    sanitize: bool = False,
) -> Evaluation:
    """The verdict on one candidate; starts a judge for it and ends it. `progress` is called with (phase, text).
    `sanitize`: a candidate that verification passed also runs under compute-sanitizer.

    Raises TaskError, DeviceError, SandboxError, StoreError, WorkerError; never for a bad candidate.
    """
    from cuda_agent.judge import sanitizer
    from cuda_agent.judge.session import JudgeSession

    if sanitize:
        sanitizer.require(options.device)
    with JudgeSession(task, options, progress=progress) as session:
        session.admit()
        evaluation = session.evaluate(candidate)
        return sanitizer.sanitize(session, candidate, evaluation) if sanitize else evaluation
