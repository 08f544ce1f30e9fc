"""cuda-agent doctor, cuda-agent lock"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from cuda_agent.cli.support.answer import CommandAnswer, answers
from cuda_agent.cli.support.doctor_timing import run_timing
from cuda_agent.cli.support.output import ProgressView, say
from cuda_agent.cli.support.probes import Probe, probe_all
from cuda_agent.cli.support.settings import put_device, with_settings
from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.errors import EXIT_OK, CudaAgentError, DeviceError
from cuda_agent.core.settings import Settings
from cuda_agent.release.lock import StackLock, read_lock


@with_settings(JudgeOptions, only=("device",), file=False)
@answers
def doctor(
    settings: Settings,
    timing: Annotated[
        bool,
        typer.Option("--timing", help="Time the same program twice, again and again: how far apart are the times?"),
    ] = False,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="SECONDS", min=1.0, help="About how long --timing takes.")
    ] = 60.0,
) -> CommandAnswer:
    """Say what this machine can do and what is missing. Exit code 0 when cpu or cuda jobs can run, else 4."""
    if timing:
        put_device(settings)
        return run_timing(settings.parse(JudgeOptions).device, seconds)
    with ProgressView("looking") as progress:
        progress("doctor", "importing torch, compiling, starting a sandbox")
        probes, devices = probe_all()
    works = {name: "can run" if can else "can not run" for name, can in devices.items()}
    return CommandAnswer(
        {"schema_version": 1, "devices": devices, "probes": [asdict(probe) for probe in probes]},
        [_table(probes), *(Text(f"{name} jobs: {can}", style="bold") for name, can in works.items())],
        code=EXIT_OK if any(devices.values()) else DeviceError.exit_code,
    )


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


@answers
def lock(
    out: Annotated[Path, typer.Option("--out", help="The file to write.")] = Path(StackLock.file_name),
) -> CommandAnswer:
    """Write down the stack that times depend on, for --locked; says what differs from the file as it was."""
    here = read_lock()
    before = _before(out)
    here.save(out)
    for difference in () if before is None else before.differences(here):
        say(str(difference))
    return CommandAnswer(here, said=[f"locked in {out}"])


def _before(path: Path) -> StackLock | None:
    """The lock that is about to be replaced; one that can't be read is replaced too."""
    if not path.exists():
        return None
    try:
        return StackLock.load(path)
    except CudaAgentError:
        return None
