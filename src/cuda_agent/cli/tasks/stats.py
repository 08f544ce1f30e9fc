"""cuda-agent tasks stats"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from cuda_agent.cli.support.options import DebugArg, JsonArg
from cuda_agent.cli.support.output import emit, say, show
from cuda_agent.cli.support.settings import with_settings
from cuda_agent.tasks.dataset.plots import write_plots
from cuda_agent.tasks.dataset.stats import Spread, Stats, read_stats
from cuda_agent.tasks.options import ChooseOptions

_MOST = 20


@with_settings(ChooseOptions)
def command(
    options: ChooseOptions,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the data set, or an exported one.")],
    plots: Annotated[
        Path | None,
        typer.Option("--plots", metavar="DIR", help="Where plots (SVG) and stats.json go; DIR/plots if not given."),
    ] = None,
    as_json: JsonArg = False,
    debug: DebugArg = False,
) -> int:
    """Composition, operators, cost, roofline class, times and funnel of a data set, printed and plotted."""
    stats = read_stats(directory, options.stack, options.count)
    target = plots or directory / "plots"
    written = write_plots(stats, target)
    stats.model_copy(update={"points": ()}).write(target)
    if as_json:
        emit(stats.model_copy(update={"points": ()}).to_json())
        return 0
    show(_composition(stats), _numbers(stats), _seeds(stats))
    if stats.funnel is not None:
        show(_funnel(stats))
    say(f"{len(written)} plots: {target}")
    return 0


def _composition(stats: Stats) -> Table:
    table = Table(title=f"Composition of {stats.tasks} tasks")
    for name in ("origin", "tasks", "share %", "published %"):
        table.add_column(name, justify="left" if name == "origin" else "right")
    for share in stats.composition:
        table.add_row(share.origin, str(share.tasks), f"{share.percent:.2f}", f"{share.published_percent:.2f}")
    return table


def _numbers(stats: Stats) -> Table:
    table = Table(title="Cost and time of one forward pass")
    for name in ("", "least", "10 %", "median", "90 %", "most"):
        table.add_column(name, justify="right" if name else "left")
    for name, spread, unit in (
        ("Gflop", stats.flops, 1e9),
        ("MB moved", stats.bytes, 1e6),
        ("predicted ms", stats.predicted_us, 1e3),
        ("eager ms", stats.eager_us, 1e3),
        ("eager / predicted", stats.prediction, 1.0),
    ):
        if spread is not None:
            table.add_row(name, *(_number(getattr(spread, field) / unit) for field in Spread.model_fields))
    total = max(1, sum(stats.bound.values()))
    bound = ", ".join(f"{kind} {100 * count / total:.1f} %" for kind, count in sorted(stats.bound.items()))
    table.caption = f"bound by {bound or 'nothing known'}; {stats.graphs} operator graphs"
    return table


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _seeds(stats: Stats) -> Table:
    table = Table(title=f"The most frequent of {len(stats.seeds)} seeds")
    table.add_column("seed")
    table.add_column("tasks", justify="right")
    table.add_column("%", justify="right")
    for name, count in list(stats.seeds.items())[:_MOST]:
        table.add_row(name, str(count), f"{100 * count / max(1, stats.tasks):.2f}")
    return table


def _funnel(stats: Stats) -> Table:
    assert stats.funnel is not None
    origins = list(stats.funnel.by_origin)
    table = Table(title=f"Funnel of {stats.funnel.all.candidates} candidates, {stats.funnel.all.unknown} not asked yet")
    table.add_column("rule")
    for name in ("asked", "broke it", *origins):
        table.add_column(name, justify="right")
    for place, stage in enumerate(stats.funnel.all.stages):
        broke = [str(stats.funnel.by_origin[origin].stages[place].broke or "") for origin in origins]
        table.add_row(stage.rule.value, str(stage.asked), str(stage.broke or ""), *broke)
    table.add_row("left", "", "", *(str(stats.funnel.by_origin[origin].kept) for origin in origins))
    return table
