"""Shows several runs as one table: a row for each task, geometric means over the correct ones, counts of failures."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from cuda_agent.core.baselines import BASELINES
from cuda_agent.core.bench import BenchResult
from cuda_agent.core.enums import Verdict
from cuda_agent.core.plain import plain
from cuda_agent.core.records import Timing, Trajectory
from cuda_agent.report.rows import JudgedRow
from cuda_agent.report.tables.columns import plain_table
from cuda_agent.report.units import bounds, geometric_mean, microseconds, times

#: below this share of a ratio its interval begins too low: the ratio is uncertain.
_CERTAIN = 0.8
_STYLES = {"passed": "green", "kept": "yellow", "not covered": "yellow"}


@dataclass(frozen=True)
class RunRow(JudgedRow):
    """One task of a suite: its trajectory or its result in a benchmark, or the error that it ended with."""

    task: str
    result: Trajectory | BenchResult | None = None
    error: str = ""

    @property
    def note(self) -> str:
        """Why the task has no time or its original is kept, with the verdict of one that failed."""
        judged = self.evaluation
        failed = judged is not None and judged.verdict is not Verdict.PASSED
        return f"{judged.verdict.value}: {judged.reason}" if judged is not None and failed else super().note


def summary(rows: Sequence[RunRow]) -> dict[str, Any]:
    """Returns counts over all tasks, and geometric means over the tasks that passed and have the ratio, with their
    number."""
    out: dict[str, Any] = {"tasks": len(rows), "states": dict(Counter(row.state for row in rows))}
    rewards = Counter(str(row.result.reward.value) for row in rows if row.result and row.result.reward)
    out["rewards"] = dict(sorted(rewards.items()))
    for baseline in BASELINES:
        ratios = [ratio.value for row in rows if (ratio := row.ratio(baseline)) is not None]
        out[f"geomean_vs_{baseline}"] = geometric_mean(ratios)
        out[f"timed_vs_{baseline}"] = len(ratios)
        out[f"faster_than_{baseline}"] = sum(row.is_faster(baseline) for row in rows)
    matched = [ratio for row in rows if (ratio := row.ratio("matched")) is not None]
    out["hardly_known_vs_matched"] = sum(ratio.low < _CERTAIN * ratio.value for ratio in matched)
    return out


def suite_view(rows: Sequence[RunRow]) -> RenderableType:
    """Returns the table and the lines below it."""
    against = [f"vs {baseline}" for baseline in BASELINES]
    headers = ("task", "result", *(f"{baseline} µs" for baseline in BASELINES), "ours µs", *against, "reward")
    # A ratio's interval stands below it where the terminal is narrow.
    table = plain_table(*headers, left=("task", "result"), wrap=("task", *against))
    for row in rows:
        table.add_row(Text(plain(row.task)), Text(row.state, style=_STYLES.get(row.state, "red")), *_numbers(row))
    notes = [Text(plain(f"{row.task}: {row.state}: {row.note}")) for row in rows if row.note]
    return Group(table, *notes, *map(Text, _totals(rows)))


def _numbers(row: RunRow) -> list[str]:
    reward = str(row.result.reward.value) if row.result is not None and row.result.reward is not None else "—"
    shown: list[Timing | None] = [*map(row.timing, BASELINES), row.ours]
    ratios = [f"{times(r.value)} {bounds(r.low, r.high)}" if r else "—" for r in map(row.ratio, BASELINES)]
    return [microseconds(t.latency_us) if t else "—" for t in shown] + ratios + [reward]


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
            f"of {facts['timed_vs_matched']} ratios vs matched {unsure} begin below {_CERTAIN} of their value: the "
            "machine was busy with other work, or the budget allowed too few rounds"
        )
    if means:
        lines.insert(1, f"geometric means over the tasks that passed: vs {', vs '.join(means)}")
    return lines
