"""cuda-agent tasks build"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from cuda_agent.agent.device import resolve_device
from cuda_agent.cli.options import DebugArg, DeviceArg, DeviceOption, JsonArg
from cuda_agent.cli.output import ProgressView, emit, say
from cuda_agent.tasks.build import CHOSEN_FILE, BuildOptions, build


def command(
    config: Annotated[Path, typer.Option("--config", metavar="FILE", help="What to build, as YAML.")],
    device: DeviceArg = DeviceOption.AUTO,
    as_json: JsonArg = False,
    debug: DebugArg = False,
) -> int:
    """Crawl, compose, filter and decontaminate until enough tasks are left; goes on where a killed build ended."""
    options = BuildOptions.read(config)
    with ProgressView("tasks build") as view:
        made = build(options, resolve_device(device.value), view)
    if as_json:
        counts = {"candidates": made.candidates, "kept": made.compared.account.kept, "tasks": len(made.chosen)}
        emit(json.dumps({"folder": str(made.folder), **counts}, indent=1))
    else:
        say(f"{made.compared.account.kept} of {made.candidates} candidates are left, {len(made.chosen)} make the set")
        say(f"{made.folder / CHOSEN_FILE}")
    return 0
