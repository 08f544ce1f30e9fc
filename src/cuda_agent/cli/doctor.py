"""cuda-agent doctor"""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from cuda_agent.cli.support.doctor_timing import run_timing
from cuda_agent.cli.support.options import DebugArg, JsonArg
from cuda_agent.cli.support.output import ProgressView, emit, show
from cuda_agent.cli.support.probes import Probe, as_data, probe_all
from cuda_agent.cli.support.settings import put_device, with_settings
from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.errors import EXIT_OK, DeviceError
from cuda_agent.core.settings import Settings


@with_settings(JudgeOptions, only=("device",), file=False)
def command(
    settings: Settings,
    timing: Annotated[
        bool,
        typer.Option("--timing", help="Time the same program twice, again and again: how far apart are the times?"),
    ] = False,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="SECONDS", min=1.0, help="About how long --timing takes.")
    ] = 60.0,
    as_json: JsonArg = False,
    debug: DebugArg = False,
) -> int:
    """Say what this machine can do and what is missing. Exit code 0 when cpu or cuda jobs can run, else 4."""
    if timing:
        put_device(settings)
        return run_timing(settings.parse(JudgeOptions).device, seconds, as_json=as_json)
    with ProgressView("looking") as progress:
        progress("doctor", "importing torch, compiling, starting a sandbox")
        probes, devices = probe_all()
    if as_json:
        emit(json.dumps({"schema_version": 1, "devices": devices, "probes": as_data(probes)}, indent=1))
    else:
        show(_table(probes), *(_device_line(name, works) for name, works in devices.items()))
    return EXIT_OK if any(devices.values()) else DeviceError.exit_code


def _table(probes: list[Probe]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    styles = {"ok": "green", "limited": "yellow", "missing": "red"}
    for probe in probes:
        remedy = f"\n→ {probe.remedy}" if probe.remedy else ""
        table.add_row(probe.name, Text(probe.state, style=styles[probe.state]), Text(probe.fact + remedy))
    return table


def _device_line(name: str, works: bool) -> Text:
    return Text(f"{name} jobs: {'can run' if works else 'can not run'}", style="bold")
