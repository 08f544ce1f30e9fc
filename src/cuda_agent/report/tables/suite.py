"""Several runs as one table with a row a task, geometric means over the correct ones, and all failures counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cuda_agent.core.bench import BenchResult
from cuda_agent.core.enums import Verdict
from cuda_agent.core.records import ProfileReport, Ratio, Timing, Trajectory
from cuda_agent.report.plain import plain
from cuda_agent.report.units import bounds, geometric_mean, microseconds, times
from cuda_agent.reward import is_faster

BASELINES = ("eager", "compile", "matched")
#: a ratio is hardly known whose interval begins below this share of it.
_KNOWN = 0.8


@dataclass(frozen=True)
class RunRow:
    """One task of a suite: its trajectory (or its result in a benchmark), or the error that it ended with."""

    task: str
    trajectory: Trajectory | BenchResult | None = None
    error: str = ""

    @property
    def state(self) -> str:
        """`passed`, `failed`, `not covered`, `interrupted` or `error`."""
        run = self.trajectory
        if run is None or run.outcome == "error":
            return "error"
        if run.evaluation is not None:
            return "passed" if run.evaluation.verdict is Verdict.PASSED else "failed"
        return {"not_covered": "not covered", "interrupted": "interrupted"}.get(run.outcome, "failed")

    @property
    def note(self) -> str:
        """Why there is no time, where there is none."""
        run = self.trajectory
        if run is None:
            return self.error
        if run.evaluation is not None and run.evaluation.verdict is not Verdict.PASSED:
            return f"{run.evaluation.verdict.value}: {run.evaluation.reason}"
        return "" if self.state == "passed" else run.message

    @property
    def profile(self) -> ProfileReport | None:
        run = self.trajectory
        passed = run is not None and self.state == "passed" and run.evaluation is not None
        return run.evaluation.profile if passed and run is not None and run.evaluation is not None else None

    def against(self, baseline: str) -> Ratio | None:
        """`eager`, `compile` or `matched` over ours, with its interval; None without a passed profile."""
        profile = self.profile
        return profile.ratios.get(profile.matched if baseline == "matched" else baseline) if profile else None

    def ratio(self, baseline: str) -> float | None:
        """How many times faster than `eager`, `compile` or `matched`; None without a passed profile."""
        found = self.against(baseline)
        return found.value if found else None


def summary(rows: Sequence[RunRow]) -> dict[str, Any]:
    """Counts over all tasks; geometric means over those that passed and have the ratio (number beside them)."""
    out: dict[str, Any] = {"tasks": len(rows), "states": dict(Counter(row.state for row in rows))}
    rewards = Counter(str(row.trajectory.reward.value) for row in rows if row.trajectory and row.trajectory.reward)
    out["rewards"] = dict(sorted(rewards.items()))
    for baseline in BASELINES:
        ratios = [ratio for row in rows if (ratio := row.ratio(baseline)) is not None]
        out[f"geomean_vs_{baseline}"] = geometric_mean(ratios)
        out[f"timed_vs_{baseline}"] = len(ratios)
        out[f"faster_than_{baseline}"] = sum(is_faster(row.against(baseline)) for row in rows)
    matched = [known for row in rows if (known := row.against("matched")) is not None]
    out["hardly_known_vs_matched"] = sum(known.low < _KNOWN * known.value for known in matched)
    return out


def suite_view(rows: Sequence[RunRow]) -> RenderableType:
    """The table and the lines below it."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("task", overflow="fold")
    table.add_column("result", no_wrap=True)
    for header in ("eager µs", "compile µs", "matched µs", "ours µs", "vs eager", "vs compile", "vs matched", "reward"):
        # A ratio's interval goes below it where the terminal is narrow.
        table.add_column(header, justify="right", no_wrap=not header.startswith("vs"))
    for row in rows:
        table.add_row(Text(plain(row.task)), Text(row.state, style=_style(row.state)), *_numbers(row))
    notes = [Text(plain(f"{row.task}: {row.state}: {row.note}")) for row in rows if row.note]
    return Group(table, *notes, *map(Text, _totals(rows)))


def _style(state: str) -> str:
    return {"passed": "green", "not covered": "yellow"}.get(state, "red")


def _numbers(row: RunRow) -> list[str]:
    profile, run = row.profile, row.trajectory
    reward = str(run.reward.value) if run is not None and run.reward is not None else "—"
    if profile is None:
        return ["—"] * 7 + [reward]
    shown: list[Timing | None] = [profile.baselines.get(name) for name in ("eager", "compile", profile.matched)]
    shown.append(profile.candidate)
    ratios = [row.against(baseline) for baseline in BASELINES]
    known = [f"{times(r.value)} {bounds(r.low, r.high)}" if r else "—" for r in ratios]
    return [microseconds(t.latency_us) if t else "—" for t in shown] + known + [reward]


def _totals(rows: Sequence[RunRow]) -> list[str]:
    facts = summary(rows)
    states = ", ".join(f"{count} {state}" for state, count in sorted(facts["states"].items()))
    means = [
        f"{name} {times(facts[f'geomean_vs_{name}'])} (of {facts[f'timed_vs_{name}']})"
        for name in BASELINES
        if facts[f"geomean_vs_{name}"] is not None
    ]
    faster = [f"{name} {facts[f'faster_than_{name}']}/{facts['tasks']}" for name in BASELINES]
    lines = [f"{facts['tasks']} tasks: {states}", f"at least 5 % faster, by the interval, than: {', '.join(faster)}"]
    if any(row.profile for row in rows):
        lines.append("in brackets: 95 % intervals of each ratio's own timing")
    if unsure := facts["hardly_known_vs_matched"]:
        lines.append(
            f"of {facts['timed_vs_matched']} ratios vs matched {unsure} begin below {_KNOWN} of their value: the "
            "machine was busy with something else, or too few rounds fitted the budget"
        )
    if means:
        lines.insert(1, f"geometric means over the tasks that passed: vs {', vs '.join(means)}")
    return lines
