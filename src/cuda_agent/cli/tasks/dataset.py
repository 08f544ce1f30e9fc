"""cuda-agent tasks build, tasks export, tasks stats"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from cuda_agent.cli.support.output import CommandAnswer, ProgressView
from cuda_agent.cli.support.settings import put_device, with_settings
from cuda_agent.core.enums import Device
from cuda_agent.core.settings import Settings
from cuda_agent.report.tables.columns import plain_table
from cuda_agent.tasks import build as building
from cuda_agent.tasks.dataset import export as exporting
from cuda_agent.tasks.dataset.plots import write_plots
from cuda_agent.tasks.dataset.stats import Spread, Stats, read_stats
from cuda_agent.tasks.filter.funnel import Funnel
from cuda_agent.tasks.filter.options import FilterOptions
from cuda_agent.tasks.options import ChooseOptions

_MOST = 20


@with_settings(FilterOptions, only=("device",), file=False)
def build(
    settings: Settings,
    config: Annotated[Path, typer.Option("--config", metavar="FILE", help="The data set's settings: TOML or YAML.")],
    recorded: Annotated[
        str | None,
        typer.Option("--recorded", metavar="FILE|STACK", help="Measure nothing; use these recorded measurements."),
    ] = None,
) -> CommandAnswer:
    """Run all stages until enough tasks are left, then export them. A killed build is continued."""
    options = building.BuildOptions.read(config)
    if recorded is None:
        put_device(settings)
    with ProgressView("tasks build") as view:
        where = Device.CPU if recorded is not None else settings.parse(FilterOptions).device
        made = building.build(options, where, view, recorded=recorded)
    total, folder = sum(made.splits.values()), made.folder / building.EXPORT_FOLDER
    said = [f"{made.kept} of {made.candidates} candidates are left, {total} make the set: {folder}"]
    if made.unmeasured:
        left_out = f"{made.unmeasured} of {made.candidates} candidates have no recorded measurement and are left out"
        said.insert(0, left_out)
    return CommandAnswer({**vars(made), "folder": str(made.folder)}, said=said)


@with_settings(ChooseOptions)
def export(
    options: ChooseOptions,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the data set, filtered and compared.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder to write; by default DIR/export.")
    ] = None,
) -> CommandAnswer:
    """Write one parquet file for each split, and a card; `datasets.load_dataset` loads the folder."""
    target = out or directory / "export"
    chosen = exporting.choose(directory, stack=options.stack, count=options.count)
    counts = exporting.export(directory, target, chosen)
    splits = ", ".join(f"{split} {number}" for split, number in counts.items())
    return CommandAnswer({"folder": str(target), "splits": counts}, said=[f"{splits}: {target}"])


@with_settings(ChooseOptions)
def stats(
    options: ChooseOptions,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the data set, or an exported one.")],
    plots: Annotated[
        Path | None,
        typer.Option("--plots", metavar="DIR", help="Folder of plots (SVG), stats.json; default: DIR/plots."),
    ] = None,
) -> CommandAnswer:
    """Print and plot a data set's composition, operators, cost, roofline class, times and funnel."""
    found = read_stats(directory, options.stack, options.count)
    target = plots or directory / "plots"
    written = write_plots(found, target)
    without_points = found.model_copy(update={"points": ()})
    without_points.write(target)
    return CommandAnswer(without_points, _tables(found), [f"{len(written)} plots: {target}"])


def _tables(stats: Stats) -> Iterator[Table]:
    table = plain_table(
        "origin", "tasks", "share %", "published %", left=("origin",), title=f"Composition of {stats.tasks} tasks"
    )
    for share in stats.composition:
        table.add_row(share.origin, str(share.tasks), f"{share.percent:.2f}", f"{share.published_percent:.2f}")
    yield table
    yield _costs(stats)
    table = plain_table("seed", "tasks", "%", left=("seed",), title=f"The most frequent of {len(stats.seeds)} seeds")
    for name, count in list(stats.seeds.items())[:_MOST]:
        table.add_row(name, str(count), f"{100 * count / max(1, stats.tasks):.2f}")
    yield table
    if stats.funnel is not None:
        yield _funnel(stats.funnel)


def _costs(stats: Stats) -> Table:
    table = plain_table(
        "", "least", "10 %", "median", "90 %", "most", left=("",), title="Cost and time of one forward pass"
    )
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


def _funnel(funnel: Funnel) -> Table:
    title = f"Funnel of {funnel.all.candidates} candidates, {funnel.all.unknown} not asked yet"
    table = plain_table("rule", "asked", "broke it", *funnel.by_origin, left=("rule",), title=title)
    for place, stage in enumerate(funnel.all.stages):
        broke = [str(flow.stages[place].broke or "") for flow in funnel.by_origin.values()]
        table.add_row(stage.rule.value, str(stage.asked), str(stage.broke or ""), *broke)
    table.add_row("left", "", "", *(str(flow.kept) for flow in funnel.by_origin.values()))
    return table
