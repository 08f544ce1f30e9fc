"""Shows the metrics of a benchmark run: a row for each group and baseline."""

from rich.console import Group as Lines
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from cuda_agent.core.bench import Estimate, Metrics, MetricsGroup
from cuda_agent.core.plain import plain
from cuda_agent.report import units
from cuda_agent.report.tables.columns import plain_table
from cuda_agent.report.units import bounds, known, times

_HEADERS = (
    "group", "tasks", "passed", "vs", "faster", "significantly", "≥ 5 %", "geomean, all", "geomean, correct",
    "full queue", "median, all", "top tenth",
)  # fmt: skip

_LEGEND = (
    "rates: shares of all tasks; significantly: beyond the 95 % interval of a task's own timing; a failure and an "
    "original that is kept count 1.0 in means over all; full queue: geomean, correct, of calls in a full queue, where "
    "a GPU hides the host's part; in brackets: 95 % intervals by bootstrap over tasks (those of the rates are in "
    "metrics.json)"
)


def metrics_view(metrics: Metrics) -> RenderableType:
    """Returns the table, its legend, and a line on tasks that aren't done."""
    table = plain_table(*_HEADERS, left=("group", "vs"), wrap=("group",))
    for group in metrics.groups:
        _add_rows(table, group)
    lines: list[RenderableType] = [table] if metrics.groups else [Text("no task is done")]
    if metrics.groups:
        lines.append(Text(_LEGEND))
    if metrics.done < metrics.tasks:
        lines.append(Text(f"{metrics.done} of {metrics.tasks} tasks are done", style="yellow"))
    return Lines(*lines)


def _add_rows(table: Table, group: MetricsGroup) -> None:
    name = Text(group.name if group.by == "all" else plain(f"{group.by} {group.name}"))
    for index, against in enumerate(group.against):
        first: tuple[RenderableType, ...] = ("", "", "") if index else (name, str(group.tasks), percent(group.passed))
        table.add_row(
            *first,
            against.baseline,
            percent(against.faster),
            percent(against.significantly_faster),
            percent(against.faster_by_5_percent),
            ratio(against.geomean_all),
            ratio(against.geomean_correct),
            known(against.geomean_queued.value, times),
            ratio(against.median_all),
            known(against.top_tenth_share, units.percent),
        )


def percent(estimate: Estimate) -> str:
    """Returns `80 %`, without the interval, which follows from the number of tasks."""
    return known(estimate.value, units.percent)


def ratio(estimate: Estimate) -> str:
    """Returns `1.79× [1.52, 2.10]`."""
    shown = known(estimate.value, times)
    return shown if estimate.low is None or estimate.high is None else f"{shown} {bounds(estimate.low, estimate.high)}"
