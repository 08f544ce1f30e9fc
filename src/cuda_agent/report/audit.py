"""Chooses the tasks that a person should check (suspicious wins and a random sample), and keeps the audits."""

import difflib
import hashlib
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cuda_agent.core.baselines import BASELINES
from cuda_agent.core.bench import Audit, Audits, AuditVerdict
from cuda_agent.core.enums import Device, Verdict
from cuda_agent.core.errors import UsageError
from cuda_agent.core.inspection import Roofline
from cuda_agent.core.plain import plain
from cuda_agent.core.record import now
from cuda_agent.report.rows import ReportRow
from cuda_agent.report.units import percent, times

#: speed-ups from which on a win is checked, whatever the other tasks reach.
_LARGE = {"eager": 20.0, "compile": 10.0, "matched": 5.0}
#: with at least this many tasks, a win is also checked when it lies this many interquartile ranges above the upper
#: quartile.
_OUTLIER_OF, _OUTLIER_IQR = 12, 3.0
_SAMPLE = 10


@dataclass(frozen=True)
class ToCheck:
    """A task to check, with the reasons, and its last audit."""

    row: ReportRow
    reasons: tuple[str, ...]
    suspicious: bool
    audit: Audit | None = None


def to_check(rows: Sequence[ReportRow], limits: Roofline | None, audits: Audits) -> tuple[ToCheck, ...]:
    """Returns the suspicious tasks, then the sample. The same run gives the same tasks; tasks with an audit stay."""
    audited = last_audits(audits)
    outliers = _outliers(rows)
    sample = _sample(rows)
    found = []
    for row in rows:
        why = [*_reasons(row, limits), *outliers.get(row.task.id, ())]
        shown = [*why, *(["random sample"] if row.task.id in sample else [])]
        audit = audited.get(row.task.id)
        if shown or audit is not None:
            found.append(ToCheck(row, tuple(shown or ["audited before"]), bool(why), audit))
    gains = {row.task.id: ratio.value for row in rows if (ratio := row.ratio("matched")) is not None}
    return tuple(sorted(found, key=lambda item: (not item.suspicious, -gains.get(item.row.task.id, 0.0))))


def last_audits(audits: Audits) -> dict[str, Audit]:
    """Returns the last audit of each task."""
    return {audit.task: audit for audit in audits.audits}


def record(
    directory: Path, rows: Sequence[ReportRow], audits: Audits, task: str, verdict: AuditVerdict, note: str, by: str
) -> Audit:
    """Adds an audit durably. Raises UsageError when the run has no such task, StoreError when the disk refuses."""
    names = {plain(row.task.id): row.task.id for row in rows} | {row.task.id: row.task.id for row in rows}
    if task not in names:
        near = difflib.get_close_matches(task, names, n=1)
        hint = f"Did you mean {near[0]}?" if near else "cuda-agent audit RUN lists them"
        raise UsageError(f"The run has no task {task}", hint)
    audit = Audit(task=names[task], verdict=verdict, note=note, by=by, when=now())
    Audits(audits=(*audits.audits, audit)).write(directory)
    return audit


def _reasons(row: ReportRow, limits: Roofline | None) -> list[str]:
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
    # On a CPU the caches may move bytes faster than memory.
    if share is not None and share > 1.0 and found is not None and found.device is not Device.CPU:
        why.append(f"moves its bytes at {percent(share)} of the measured bandwidth")
    return why


def _outliers(rows: Sequence[ReportRow]) -> dict[str, list[str]]:
    """Returns the wins over the matched baseline whose logarithm lies far above the others'."""
    logs = {row.task.id: math.log(ratio.value) for row in rows if (ratio := row.ratio("matched")) is not None}
    if len(logs) < _OUTLIER_OF:
        return {}
    low, _, high = statistics.quantiles(logs.values(), n=4)
    bound = max(high + _OUTLIER_IQR * (high - low), math.log(1.5))
    return {name: ["far above the run's other speed-ups"] for name, log in logs.items() if log > bound}


def _sample(rows: Sequence[ReportRow]) -> set[str]:
    """Returns a sample of the tasks that passed, chosen by a hash of task and candidate."""
    texts = {
        row.task.id: f"{row.task.id}\n{row.evaluation.candidate_digest}"
        for row in rows
        if row.profile is not None and row.evaluation is not None
    }
    drawn = sorted(texts, key=lambda name: hashlib.sha256(texts[name].encode()).digest())
    return set(drawn[: min(_SAMPLE, math.ceil(len(texts) / 5))])
