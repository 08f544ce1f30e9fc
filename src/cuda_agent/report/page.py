"""Writes a recorded run as one HTML file that needs no network. The details of tasks are packed in it."""

import base64
import hashlib
import json
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib import resources
from itertools import groupby
from typing import Any, get_args

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from cuda_agent.core.baselines import BASELINES, Baseline
from cuda_agent.core.bench import AuditVerdict, Estimate, Metrics
from cuda_agent.core.inspection import Roofline
from cuda_agent.core.plain import plain
from cuda_agent.core.records import Evaluation
from cuda_agent.report import charts
from cuda_agent.report.audit import ToCheck, to_check
from cuda_agent.report.details import KEPT, Blobs, Details, details, pack
from cuda_agent.report.explain import Explanation, explain
from cuda_agent.report.load import Recorded
from cuda_agent.report.plain import symbol
from cuda_agent.report.rows import STATES, ReportRow
from cuda_agent.report.samples import STRIP, programs
from cuda_agent.report.tables.evaluation import errors_line, stack_line
from cuda_agent.report.training import Series
from cuda_agent.report.units import bounds, interval, microseconds, moment, percent, seconds, times

_ASSETS = "assets"
#: the most bytes of a page, and the lengths in characters to which transcripts are cut until it is small enough.
MOST_BYTES = 15_000_000
_SHORTER = (6_000, 1_200)
_SPENT = ("wall_s", "judge_s", "tokens", "cost")
_NAMES = {"eager": "eager", "compile": "torch.compile", "matched": "matched"}


@dataclass(frozen=True)
class Page:
    """`html` is the file's text, `to_check` the number of tasks that a person should check, `unchecked` the number of
    these without an audit."""

    html: str
    to_check: int
    unchecked: int


@dataclass(frozen=True)
class PageEntry:
    """A row of the table, with the name of its details' blob."""

    row: ReportRow
    blob: str
    check: ToCheck | None


def render(run: Recorded, metrics: Metrics | None, run_name: str) -> Page:
    """Writes the page of a run. `metrics` are those of `run`; `run_name` is the folder in the commands that the page
    shows.

    Where the page would be larger than `MOST_BYTES`, transcripts are cut, and the page says so.
    """
    page = _render(run, metrics, run_name, KEPT)
    for kept in _SHORTER:
        if len(page.html) <= MOST_BYTES:
            break
        note = f"Texts of the transcripts are cut to {kept:,} characters here, so that the page stays small."
        page = _render(replace(run, notes=(*run.notes, note)), metrics, run_name, kept)
    return page


def _render(run: Recorded, metrics: Metrics | None, run_name: str, kept: int) -> Page:
    blobs: Blobs = {}
    environment = _environment()
    seen = [_look(row, run.limits, blobs, kept) for row in run.rows]
    rows = [row for row, _, _ in seen]
    limits = run.limits or next((found.limits for _, found, _ in seen if found.limits is not None), None)
    checks = to_check(rows, limits, run.audits)
    by_task = {item.row.task.id: item for item in checks}
    template = environment.get_template("task.html.j2")
    entries = []
    for row, found, explanation in seen:
        name = row.task.id
        fragment = template.render(
            row=row,
            details=found,
            explanation=explanation,
            programs=programs(row.profile) if row.profile is not None else (),
            evaluation=row.evaluation,
            profile=row.profile,
            share=row.memory_share(limits),
            limits=limits,
            check=by_task.get(name),
            audits=[audit for audit in run.audits.audits if audit.task == name],
        )
        entries.append(PageEntry(row, pack(blobs, fragment), by_task.get(name)))
    context = _overview(run, metrics, entries, checks, limits) | _assets() | {"run_name": run_name, "blobs": blobs}
    context["audit_command"] = f"cuda-agent audit {shlex.quote(run_name)}"
    html = environment.get_template("page.html.j2").render(context)
    return Page(html, len(checks), sum(item.audit is None for item in checks))


def _look(row: ReportRow, limits: Roofline | None, blobs: Blobs, kept: int) -> tuple[ReportRow, Details, Explanation]:
    """Reads a task's run directory. Returns the row with the samples and the work that only the directory holds."""
    found = details(row.directory, row.source, blobs, kept)
    result, stored = row.result, found.evaluation
    if result is not None and stored is not None and _is_fuller(stored, row.evaluation):
        row = replace(row, result=result.model_copy(update={"evaluation": stored}))
    if row.task.work is None and found.work is not None:
        row = replace(row, task=row.task.model_copy(update={"work": found.work}))
    # The turns are large. Once the transcript is packed, only the explanation needs them.
    explanation = explain(row, found.source, found.turns, limits or found.limits)
    return row, replace(found, turns=()), explanation


def _is_fuller(stored: Evaluation, held: Evaluation | None) -> bool:
    if held is None or held.profile is None or held.profile.candidate.samples_us:
        return False
    return stored.candidate_digest == held.candidate_digest and stored.profile is not None


def _overview(
    run: Recorded, metrics: Metrics | None, entries: list[PageEntry], checks: Iterable[ToCheck], limits: Roofline | None
) -> dict[str, Any]:
    rows = [entry.row for entry in entries]
    groups = metrics.groups if metrics is not None else ()
    whole = next((group for group in groups if group.by == "all"), None)
    judged = (row.evaluation for row in rows if row.evaluation)
    settings = run.manifest.configuration if run.manifest is not None else {}
    return {
        "run": run,
        "entries": entries,
        "states": [(state, count) for state in STATES if (count := sum(row.state == state for row in rows))],
        "levels": _distinct(row.task.level for row in rows),
        "origins": _distinct(row.task.origin for row in rows),
        "classes": _distinct(row.task.roofline for row in rows),
        "whole": whole,
        "groups": [group for group in groups if group.by != "all"],
        "histograms": charts.histograms(rows),
        "fast_p": charts.fast_p(whole.against) if whole is not None else None,
        "funnel": charts.funnel(rows),
        "roofline": charts.roofline(rows, limits),
        "limits": limits,
        "trends": _trends(run),
        "checks": list(checks),
        "stack": stack_line(run.manifest.stack, next(judged, None)) if run.manifest is not None else "",
        "configuration": json.dumps(settings, indent=2, ensure_ascii=False) if settings else "",
        "spent": {name: sum(getattr(item, name) for item in run.results) for name in _SPENT},
    }


def _distinct(values: Iterable[str | None]) -> list[str]:
    """Returns the different values in order, or nothing where all are the same."""
    found = sorted({value for value in values if value is not None}, key=lambda value: (len(value), value))
    return found if len(found) > 1 else []


def _trends(run: Recorded) -> list[tuple[str, list[tuple[Series, charts.Curves]]]]:
    """Returns the drawings of each training stage."""
    drawn = [(series, curves) for series in run.series if (curves := charts.trend(series))]
    return [(stage, list(group)) for stage, group in groupby(drawn, key=lambda pair: pair[0].stage)]


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("cuda_agent.report", _ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "us": microseconds,
        "times": times,
        "moment": moment,
        "seconds": seconds,
        "plain": plain,
        "percent": percent,
        "estimate": _estimate,
        "baseline": lambda name: Baseline.parse(name).label,
        "symbol": symbol,
    }
    environment.globals |= {
        "BASELINES": BASELINES,
        "names": _NAMES,
        "sizes": charts,
        "strip": STRIP,
        "verdicts": get_args(AuditVerdict),
        "interval": lambda timing: interval(timing.low_us, timing.high_us),
        "bounds": bounds,
        "errors_line": errors_line,
    }
    return environment


def _estimate(value: Estimate, unit: str = "×") -> str:
    """Returns `[1.02×, 1.31×]` or `[84 %, 93 %]`, or nothing where there is no interval."""
    if value.low is None or value.high is None:
        return ""
    shown = times if unit == "×" else percent
    return f"[{shown(value.low)}, {shown(value.high)}]"


def _assets() -> dict[str, Any]:
    """Returns the style and the script with their digests; the page's policy allows no others."""
    folder = resources.files("cuda_agent.report") / _ASSETS
    assets: dict[str, Any] = {}
    for name, file in (("css", "page.css"), ("script", "page.js")):
        text = (folder / file).read_text()
        assets |= {name: Markup(text), f"{name}_digest": _digest(text)}
    return assets


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
