"""What a task's neighbours on the device may be to blame for: memory or time that ran short, a clock that was
disturbed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from cuda_agent.core.enums import Device, Verdict
from cuda_agent.core.records import Evaluation, ScreenReport

#: verdicts that a task's neighbours may be to blame for; words of a failure for want of memory (where the device's is
#: full, a process that makes its context there is killed), and of any that they may be to blame for.
_SCARCE = (Verdict.OUT_OF_MEMORY, Verdict.TIMED_OUT, Verdict.TIMING_VOID)
_MEMORY_WORDS = (
    "out of memory",
    "No memory",
    "STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "for its memory",
)
_SCARCE_WORDS = (
    *_MEMORY_WORDS,
    "takes too long",
    "gave no answer within",
    "ended while",
)

#: who waits for memory gives up when so many seconds have brought no more of it than there was: as long as a task takes
#: that has just begun to hold some; and what counts as more.
PATIENCE_S, _GROWTH = 60.0, 1 << 28
#: of what a step needs, since not all of it is held at a time; and of the device, where no task but one is open.
_ENOUGH, _MOST = 0.9, 0.85

#: times the median of a candidate's events: then it has paid for what the judge's clock found besides, or for slow
#: calls.
_PAID = 1.1


class Memory(NamedTuple):
    """What a task that is open says of the device's memory: bytes that it keeps while it waits, None where that isn't
    known; and whether it waits for more to be free."""

    kept: int | None = None
    is_short: bool = False


@dataclass
class Shortage:
    """Of the device's memory: a step needs so many bytes, and waits for them to be free while more come to be so."""

    needed: int
    _most_free: int = -_GROWTH
    _grew_s: float = 0.0

    def waits(self, free: int, there: int, now: float) -> bool:
        """Whether to look again later; `there`: bytes of the device, `now`: seconds, of any clock."""
        if free >= self._most_free + _GROWTH:
            self._most_free, self._grew_s = free, now
        return free < min(_ENOUGH * self.needed, _MOST * there) and now - self._grew_s < PATIENCE_S


def is_spoilt(evaluation: Evaluation) -> bool:
    """Whether a task's neighbours may be to blame for a verdict, for a time, or for a baseline that it lacks."""
    lacking = {} if evaluation.profile is None else evaluation.profile.failed_baselines
    disturbed = _was_disturbed(evaluation) or any(map(names_scarcity, lacking.values()))
    return evaluation.verdict in _SCARCE or _broke(evaluation) or disturbed


def _was_disturbed(evaluation: Evaluation) -> bool:
    """Whether the judge's clock says something else than the device's events. On a CPU nobody was beside it."""
    if evaluation.device is not Device.CUDA:
        return False
    if evaluation.verdict is Verdict.VIOLATION:
        return all(one.layer == "timing" and one.rule == "clock" for one in evaluation.violations)
    if evaluation.verdict is not Verdict.PASSED or evaluation.profile is None:
        return False
    time = evaluation.profile.candidate
    return time.latency_us > _PAID * time.event_us


def lacks_memory(evaluation: Evaluation) -> bool:
    """Whether a candidate found too little of the device's memory, as far as its verdict says."""
    return names_memory(evaluation.reason) and (evaluation.verdict is Verdict.OUT_OF_MEMORY or _broke(evaluation))


def screened_none(report: ScreenReport) -> bool:
    """Whether no setting has a time, and one found too little memory."""
    timed = any(time_us is not None for time_us in report.latency_us)
    return not timed and any(map(names_memory, report.failures.values()))


def names_memory(failure: str) -> bool:
    """Whether it failed for want of memory."""
    return any(words in failure for words in _MEMORY_WORDS)


def _broke(evaluation: Evaluation) -> bool:
    """A library says that it found no memory in words of its own."""
    return evaluation.verdict in (Verdict.CRASHED, Verdict.RAISED) and names_memory(evaluation.reason)


def names_scarcity(failure: str) -> bool:
    """Whether a task's neighbours may be to blame for a failure."""
    return any(words in failure for words in _SCARCE_WORDS)
