"""cuda-agent doctor --timing: how far apart two timings of the same program lie on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from cuda_agent.cli.support.answer import CommandAnswer
from cuda_agent.cli.support.output import ProgressView
from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device
from cuda_agent.core.stack import read_stack
from cuda_agent.report.tables.columns import plain_table
from cuda_agent.report.tables.evaluation import stack_line
from cuda_agent.report.units import microseconds

if TYPE_CHECKING:
    from cuda_agent.judge import Sample, Stability

#: an interval and a spread need this many evaluations, whatever time was given.
LEAST = 3
#: a profile's own budget.
BUDGET_S = 2.0
COLUMNS = ("kernel", "runs", "µs", "spread", "ratio", "worst", "spread", "95 % intervals hold 1.0", "± typical")


def run_timing(device: Device, seconds: float) -> CommandAnswer:
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
    lines = map(Text, (_throttling(found), f"stack  {stack_line(read_stack())}"))
    return CommandAnswer(document, [_table(found), *lines])


def _repeat(once: Callable[[], Sample], until: float) -> list[Sample]:
    samples: list[Sample] = []
    while len(samples) < LEAST or time.monotonic() < until:
        samples.append(once())
    return samples


def _table(found: Sequence[Stability]) -> Table:
    table = plain_table(*COLUMNS, left=("kernel",))
    for one in found:
        runs = f"{one.evaluations}" + (f" ({one.void} void)" if one.void else "")
        time_us = "—" if one.latency_us is None else microseconds(one.latency_us)
        ratio = "—" if one.median is None else f"{one.median:.4f}"
        cells = [_percent(value) for value in (one.worst, one.spread, one.coverage, one.half_width)]
        table.add_row(one.kernel, runs, time_us, _percent(one.latency_spread), ratio, *cells)
    return table


def _percent(share: float | None) -> str:
    return "—" if share is None else f"{share:.1%}"


def _throttling(found: Sequence[Stability]) -> str:
    reasons = sorted({reason for one in found for reason in one.throttle_reasons})
    return f"throttled: {', '.join(reasons)}" if reasons else "throttled: no"
