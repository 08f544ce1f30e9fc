"""cuda-agent doctor, cuda-agent lock"""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from cuda_agent.cli.support.output import CommandAnswer, ProgressView, answers, say
from cuda_agent.cli.support.probes import Probe, probe_all
from cuda_agent.cli.support.settings import put_device, with_settings
from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device
from cuda_agent.core.errors import EXIT_OK, CudaAgentError, DeviceError
from cuda_agent.core.settings import Settings
from cuda_agent.core.stack import read_stack
from cuda_agent.release.lock import StackLock, read_lock
from cuda_agent.report.tables.columns import plain_table
from cuda_agent.report.tables.evaluation import stack_line
from cuda_agent.report.units import known, microseconds

if TYPE_CHECKING:
    from cuda_agent.judge import Sample, Stability

#: an interval and a spread need this many evaluations, whatever time was given.
LEAST = 3
#: a profile's own budget.
BUDGET_S = 2.0
COLUMNS = ("kernel", "runs", "µs", "spread", "ratio", "worst", "spread", "95 % intervals hold 1.0", "± typical")


@with_settings(JudgeOptions, only=("device",), file=False)
def doctor(
    settings: Settings,
    timing: Annotated[
        bool,
        typer.Option("--timing", help="Time the same program twice, repeatedly, and compare the times."),
    ] = False,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="SECONDS", min=1.0, help="Approximate time of --timing.")
    ] = 60.0,
) -> CommandAnswer:
    """Print what this machine can do and what is missing. The exit code is 0 if cpu or cuda jobs can run, else 4."""
    if timing:
        put_device(settings)
        return _timed(settings.parse(JudgeOptions).device, seconds)
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


def _timed(device: Device, seconds: float) -> CommandAnswer:
    """Measures for about `seconds` in all. Raises what a judge raises."""
    from cuda_agent.judge import KERNELS, same_twice, summarize

    options = JudgeOptions(device=device, timing_budget_s=BUDGET_S)
    found: list[Stability] = []
    end = time.monotonic() + seconds
    with ProgressView("timing") as progress:
        kernels = KERNELS[device]
        for index, kernel in enumerate(kernels):
            progress("doctor", f"a kernel of about {kernel.label}, as candidate and as baseline")
            until = time.monotonic() + (end - time.monotonic()) / (len(kernels) - index)
            with same_twice(kernel, options, progress) as once:
                found.append(summarize(_repeat(once, until)))
    document = {
        "schema_version": 1,
        "device": device.value,
        "stack": read_stack().model_dump(mode="json"),
        "kernels": [vars(stability) for stability in found],
    }
    reasons = sorted({reason for one in found for reason in one.throttle_reasons})
    lines = map(Text, (f"throttled: {', '.join(reasons) or 'no'}", f"stack  {stack_line(read_stack())}"))
    return CommandAnswer(document, [_timing_table(found), *lines])


def _repeat(once: "Callable[[], Sample]", until: float) -> "list[Sample]":
    samples: list[Sample] = []
    while len(samples) < LEAST or time.monotonic() < until:
        samples.append(once())
    return samples


def _timing_table(found: "Sequence[Stability]") -> Table:
    table = plain_table(*COLUMNS, left=("kernel",))
    for one in found:
        runs = f"{one.evaluations}" + (f" ({one.void} void)" if one.void else "")
        shares = (one.latency_spread, one.worst, one.spread, one.coverage, one.half_width)
        spread, *others = (known(share, "{:.1%}".format) for share in shares)
        time_us, ratio = known(one.latency_us, microseconds), known(one.median, "{:.4f}".format)
        table.add_row(one.kernel, runs, time_us, spread, ratio, *others)
    return table


@answers
def lock(
    out: Annotated[Path, typer.Option("--out", help="File to write.")] = Path(StackLock.file_name),
) -> CommandAnswer:
    """Write the stack that times depend on to a file, for --locked, and print what changed in that file."""
    here = read_lock()
    before = None
    # A lock that can't be read is replaced too.
    with contextlib.suppress(CudaAgentError):
        before = StackLock.load(out)
    here.save(out)
    for difference in () if before is None else before.differences(here):
        say(str(difference))
    return CommandAnswer(here, said=[f"locked in {out}"])
