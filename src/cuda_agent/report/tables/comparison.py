"""Shows benchmark runs side by side: a row for each task, marked where it is faster or slower than in the first run."""

from rich.console import Group, RenderableType
from rich.text import Text

from cuda_agent.core.bench import Cell, Comparison, Estimate, Paired, Side
from cuda_agent.core.plain import plain
from cuda_agent.report.tables.columns import plain_table
from cuda_agent.report.tables.metrics import ratio
from cuda_agent.report.units import interval, microseconds, times

_STYLES = {"faster": "green", "gained": "green", "slower": "red", "lost": "red"}


def comparison_view(comparison: Comparison) -> RenderableType:
    """Returns the runs by letters, the table, and the totals."""
    letters = [chr(ord("A") + index) for index in range(len(comparison.sides))]
    # The interval stands below the time where the terminal is narrow.
    measured = [f"{letter} µs" for letter in letters]
    more = [header for letter in letters[1:] for header in (f"{letter} µs", f"A/{letter}")]
    table = plain_table("task", "A µs", *more, left=("task",), wrap=("task", *measured))
    for row in comparison.rows:
        texts: list[Text] = []
        for index, cell in enumerate(row.cells):
            texts.append(Text(_time(cell)))
            if index:
                texts.append(Text(_change(cell), style=_STYLES.get(cell.comparison, "")))
        table.add_row(Text(plain(row.task)), *texts)
    pairs = zip(letters[1:], comparison.paired, strict=True)
    return Group(
        *(Text(_run_line(letter, side)) for letter, side in zip(letters, comparison.sides, strict=True)),
        table,
        *(Text(line) for letter, paired in pairs for line in _totals(letter, paired)),
        Text("in brackets: a time's 95 % interval; a mean's 95 % interval by bootstrap over tasks"),
    )


def _run_line(letter: str, side: Side) -> str:
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
