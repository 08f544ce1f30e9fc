"""What a person should look at, and where their word is kept: wins that are too good, and a random sample."""

from __future__ import annotations

import difflib
import hashlib
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from cuda_agent.core.bench import Audit, Audits
from cuda_agent.core.enums import Device, Verdict
from cuda_agent.core.errors import UsageError
from cuda_agent.core.inspection import Roofline
from cuda_agent.report.plain import plain
from cuda_agent.report.rows import BASELINES, Row
from cuda_agent.report.units import percent, times

Word = Literal["sound", "doubtful", "cheating"]
WORDS: tuple[Word, ...] = ("sound", "doubtful", "cheating")
#: speed-ups from which on a win is looked at, whatever the others are.
_LARGE = {"eager": 20.0, "compile": 10.0, "matched": 5.0}
#: and among at least so many: those as far above the upper quartile as so many times the quartiles' distance.
_OUTLIER_OF, _OUTLIER_IQR = 12, 3.0
_SAMPLE = 10


@dataclass(frozen=True)
class ToCheck:
    """A task with the reasons why it is looked at, and the last word on it."""

    row: Row
    reasons: tuple[str, ...]
    suspicious: bool
    audit: Audit | None = None


def to_check(rows: Sequence[Row], limits: Roofline | None, audits: Audits) -> tuple[ToCheck, ...]:
    """The suspicious first, then the sample; the same for the same run. Tasks that somebody has spoken of stay."""
    words = last_words(audits)
    outliers = _outliers(rows)
    sample = _sample(rows)
    found = []
    for row in rows:
        why = [*_reasons(row, limits), *outliers.get(row.task.id, ())]
        shown = [*why, *(["random sample"] if row.task.id in sample else [])]
        word = words.get(row.task.id)
        if shown or word is not None:
            found.append(ToCheck(row, tuple(shown or ["looked at before"]), bool(why), word))
    return tuple(sorted(found, key=lambda item: (not item.suspicious, -_size(item.row))))


def last_words(audits: Audits) -> dict[str, Audit]:
    """Of each task, what was said last."""
    return {audit.task: audit for audit in audits.audits}


def record(directory: Path, rows: Sequence[Row], audits: Audits, task: str, verdict: Word, note: str, by: str) -> Audit:
    """Durably add a word. Raises UsageError (no such task), StoreError."""
    names = {plain(row.task.id): row.task.id for row in rows} | {row.task.id: row.task.id for row in rows}
    if task not in names:
        near = difflib.get_close_matches(task, names, n=1)
        hint = f"Did you mean {near[0]}?" if near else "cuda-agent audit RUN lists them"
        raise UsageError(f"The run has no task {task}", hint)
    when = datetime.now(UTC).isoformat(timespec="seconds")
    word = Audit(task=names[task], verdict=verdict, note=note, by=by, when=when)
    Audits(audits=(*audits.audits, word)).write(directory)
    return word


def _reasons(row: Row, limits: Roofline | None) -> list[str]:
    found, why = row.evaluation, []
    if found is not None and found.verdict is Verdict.QUARANTINED:
        why.append(f"quarantined: {found.reason}")
    for name in BASELINES:
        ratio = row.ratio(name)
        if ratio is not None and ratio.low >= _LARGE[name]:
            why.append(f"{times(ratio.value)} over {name}")
    if row.profile is not None and row.profile.fewer_operations:
        why.append("fewer operations than the reference")
    share = row.memory_share(limits)
    # What a CPU's caches hold may move faster than memory.
    if share is not None and share > 1.0 and found is not None and found.device is not Device.CPU:
        why.append(f"moves its bytes at {percent(share)} of the measured bandwidth")
    return why


def _outliers(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Wins far above the others' against the matched baseline, on the logarithm."""
    logs = {row.task.id: math.log(ratio.value) for row in rows if (ratio := row.ratio("matched")) is not None}
    if len(logs) < _OUTLIER_OF:
        return {}
    low, _, high = statistics.quantiles(logs.values(), n=4)
    bound = max(high + _OUTLIER_IQR * (high - low), math.log(1.5))
    return {name: ["far above the run's other speed-ups"] for name, log in logs.items() if log > bound}


def _sample(rows: Sequence[Row]) -> set[str]:
    """Of those that passed, chosen by a hash of task and candidate, so that nobody picks."""
    passed = [row for row in rows if row.profile is not None and row.evaluation is not None]
    drawn = sorted(passed, key=lambda row: hashlib.sha256(_identity(row).encode()).digest())
    return {row.task.id for row in drawn[: min(_SAMPLE, math.ceil(len(passed) / 5))]}


def _identity(row: Row) -> str:
    return f"{row.task.id}\n{row.evaluation.candidate_digest if row.evaluation is not None else ''}"


def _size(row: Row) -> float:
    ratio = row.ratio("matched")
    return ratio.value if ratio is not None else 0.0
