"""Benchmark runs side by side as a table: a row a task, what is faster or slower than the first run marked."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cuda_agent.core.bench import Estimate
from cuda_agent.core.comparison import Cell, Comparison, Paired, Side
from cuda_agent.report.plain import plain
from cuda_agent.report.tables.metrics import ratio
from cuda_agent.report.units import interval, microseconds, times

_STYLES = {"faster": "green", "gained": "green", "slower": "red", "lost": "red"}


def comparison_view(comparison: Comparison) -> RenderableType:
    """The runs by letters, the table, and what it comes to."""
    letters = [chr(ord("A") + index) for index in range(len(comparison.sides))]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("task", overflow="fold")
    for index, letter in enumerate(letters):
        # The interval goes below the time where the terminal is narrow.
        table.add_column(f"{letter} µs", justify="right")
        if index:
            table.add_column(f"A/{letter}", justify="right", no_wrap=True)
    for row in comparison.rows:
        texts: list[Text] = []
        for index, cell in enumerate(row.cells):
            texts.append(Text(_time(cell)))
            if index:
                texts.append(Text(_change(cell), style=_STYLES.get(cell.comparison, "")))
        table.add_row(Text(plain(row.task)), *texts)
    pairs = zip(letters[1:], comparison.paired, strict=True)
    return Group(
        *(Text(_who(letter, side)) for letter, side in zip(letters, comparison.sides, strict=True)),
        table,
        *(Text(line) for letter, paired in pairs for line in _totals(letter, paired)),
        Text("in brackets: of a time its 95 % interval, of a mean 95 % by bootstrap over tasks"),
    )


def _who(letter: str, side: Side) -> str:
    commit = f", commit {side.commit[:8]}{side.commit[40:]}" if side.commit else ""
    return (
        f"{letter}: {side.directory}: {side.policy}, {side.passed} of {side.tasks} passed"
        f"{f' ({side.done} done)' if side.done < side.tasks else ''}, {side.started}{commit}"
    )


def _time(cell: Cell) -> str:
    if cell.latency_us is None:
        return cell.result or "—"
    known = interval(cell.low_us, cell.high_us) if cell.low_us is not None and cell.high_us is not None else ""
    return f"{microseconds(cell.latency_us)} {known}".rstrip()


def _change(cell: Cell) -> str:
    if cell.faster is None:
        return {"neither": "", "missing": "not in both"}.get(cell.comparison, cell.comparison)
    return f"{times(cell.faster)} {cell.comparison}"


def _totals(letter: str, paired: Paired) -> list[str]:
    words = {"missing": "not done in both", "neither": "passed in neither"}
    counts = ", ".join(f"{count} {words.get(name, name)}" for name, count in paired.comparisons.items())
    ours = f"geometric mean of A's latency over {letter}'s, {paired.both_passed} that passed in both"
    lines = [f"{letter} against A: {counts}", f"  {ours}: {_judged(paired.ours)}"]
    for baseline, estimate in paired.speedups.items():
        lines.append(f"  speed-up over {baseline} against A's, all {paired.tasks} tasks: {_judged(estimate)}")
    return lines


def _judged(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return ratio(estimate) if estimate.value is None else f"{ratio(estimate)} (one task: no interval)"
    significant = estimate.low > 1 or estimate.high < 1
    return f"{ratio(estimate)} ({'significant' if significant else 'not significant'})"
