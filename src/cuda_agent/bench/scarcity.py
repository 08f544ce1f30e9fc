"""What a task's neighbours on the device may be to blame for: memory or time that ran short."""

from __future__ import annotations

from cuda_agent.core.enums import Verdict
from cuda_agent.core.records import Evaluation

#: verdicts that a task's neighbours may be to blame for, and words of a failure that they may be to blame for.
_SCARCE = (Verdict.OUT_OF_MEMORY, Verdict.TIMED_OUT, Verdict.TIMING_VOID)
_SCARCE_WORDS = (
    "out of memory",
    "No memory",
    "takes too long",
    "for its memory",
    "gave no answer within",
    "ended while",
)


def is_spoilt(evaluation: Evaluation) -> bool:
    """Whether a task's neighbours may be to blame for a verdict, or for a baseline that it lacks."""
    lacking = {} if evaluation.profile is None else evaluation.profile.failed_baselines
    return evaluation.verdict in _SCARCE or any(map(names_scarcity, lacking.values()))


def names_scarcity(failure: str) -> bool:
    """Whether a task's neighbours may be to blame for a failure."""
    return any(words in failure for words in _SCARCE_WORDS)
