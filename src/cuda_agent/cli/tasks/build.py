"""cuda-agent tasks build"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from cuda_agent.cli.support.options import DebugArg, JsonArg
from cuda_agent.cli.support.output import ProgressView, emit, say
from cuda_agent.cli.support.settings import put_device, with_settings
from cuda_agent.core.enums import Device
from cuda_agent.core.settings import Settings
from cuda_agent.tasks.build import EXPORT_FOLDER, BuildOptions, build
from cuda_agent.tasks.filter.options import FilterOptions


@with_settings(FilterOptions, only=("device",), file=False)
def command(
    settings: Settings,
    config: Annotated[Path, typer.Option("--config", metavar="FILE", help="What to build: TOML or YAML.")],
    recorded: Annotated[
        str | None,
        typer.Option("--recorded", metavar="FILE|STACK", help="Measure nothing: take what was measured and recorded."),
    ] = None,
    as_json: JsonArg = False,
    debug: DebugArg = False,
) -> int:
    """Crawl; compose, filter, decontaminate until enough tasks are left; export. Goes on where a killed build ended."""
    options = BuildOptions.read(config)
    if recorded is None:
        put_device(settings)
    with ProgressView("tasks build") as view:
        where = Device.CPU if recorded is not None else settings.parse(FilterOptions).device
        made = build(options, where, view, recorded=recorded)
    if as_json:
        emit(json.dumps({**vars(made), "folder": str(made.folder)}, indent=1))
    else:
        total = sum(made.splits.values())
        if made.unmeasured:
            say(f"{made.unmeasured} of {made.candidates} candidates have no recorded measurement and are left out")
        say(
            f"{made.kept} of {made.candidates} candidates are left, {total} make the set: {made.folder / EXPORT_FOLDER}"
        )
    return 0
