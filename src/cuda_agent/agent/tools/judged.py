"""What Compile, Verify and Profile share: the candidate to judge, and the time that the judge takes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from cuda_agent.agent.context import ToolContext
from cuda_agent.agent.files import CallRefused
from cuda_agent.core.errors import UsageError
from cuda_agent.core.files import append_lines
from cuda_agent.core.records import Candidate, Evaluation

#: file of the evaluations of candidates that failed a trial, one line each.
FAILURES = "failures.jsonl"


def snapshot(context: ToolContext) -> Candidate:
    """Returns the candidate as it stands. Raises CallRefused if there is nothing to judge yet."""
    try:
        candidate = context.workspace.snapshot()
    except UsageError as error:
        raise CallRefused(str(error)) from None
    if "model_new.py" not in candidate.files:
        raise CallRefused("There is no model_new.py yet. Write it, and the kernels under kernels/, first.")
    return candidate


def keep_failure(context: ToolContext, evaluation: Evaluation) -> None:
    """Stores the trial that the candidate failed, so that promotion can try it on later candidates."""
    if evaluation.failing is not None:
        append_lines(context.logs / FAILURES, [evaluation.model_dump_json()])


@contextmanager
def judging(context: ToolContext) -> Iterator[None]:
    """Adds the time of the block to the run's judge time."""
    started = time.monotonic()
    try:
        yield
    finally:
        context.judge_s += time.monotonic() - started
