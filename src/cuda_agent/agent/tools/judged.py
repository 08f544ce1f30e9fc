"""What Compile, Verify and Profile share: the snapshot that is judged, and the time that judging takes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from cuda_agent.agent.context import Context
from cuda_agent.agent.files import Refusal
from cuda_agent.core.errors import UsageError
from cuda_agent.core.files import append_lines
from cuda_agent.core.records import Candidate, Evaluation

#: evaluations of candidates that failed a trial, a line each.
FAILURES = "failures.jsonl"


def snapshot(context: Context) -> Candidate:
    """The candidate as it stands. Raises Refusal when there is nothing to judge yet."""
    try:
        candidate = context.workspace.snapshot()
    except UsageError as error:
        raise Refusal(str(error)) from None
    if "model_new.py" not in candidate.files:
        raise Refusal("There is no model_new.py yet. Write it, and the kernels under kernels/, first.")
    return candidate


def keep_failure(context: Context, evaluation: Evaluation) -> None:
    """Keeps with the run what the candidate failed on, for those who try it on later ones."""
    if evaluation.failing is not None:
        append_lines(context.logs / FAILURES, [evaluation.model_dump_json()])


@contextmanager
def judging(context: Context) -> Iterator[None]:
    """Adds the time inside to what the run has spent on the judge."""
    started = time.monotonic()
    try:
        yield
    finally:
        context.judge_s += time.monotonic() - started
