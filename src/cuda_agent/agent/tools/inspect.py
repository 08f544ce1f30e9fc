"""Inspect."""

from __future__ import annotations

from cuda_agent.agent.context import ToolContext
from cuda_agent.agent.tools.base import Arguments, Tool, ToolAnswer
from cuda_agent.agent.tools.judged import judging, snapshot
from cuda_agent.agent.tools.say import say_build
from cuda_agent.core.inspection import InspectReport
from cuda_agent.core.records import BuildReport
from cuda_agent.workspace.inspection import say_inspection


class InspectArguments(Arguments):
    """What limits yours: memory, compute or latency, with the numbers against the measured roofline; each kernel's
    time, occupancy, stalls and transactions; registers, shared memory, spills and instruction mix. Decides nothing."""


def _run(arguments: InspectArguments, context: ToolContext) -> ToolAnswer:
    candidate = snapshot(context)
    with judging(context):
        report = context.session.inspect(candidate)
    if isinstance(report, BuildReport):
        return ToolAnswer(say_build(report), ok=False)
    return ToolAnswer(say_inspection(report), ok=report.limit is not None, data=_data(report))


def _data(report: InspectReport) -> dict[str, object]:
    kernels = [
        {"name": kernel.name, "time_us": kernel.time_us, "limit": kernel.limit} for kernel in report.kernels[:12]
    ]
    return {
        "limit": report.limit,
        "source": report.source,
        "memory_share": report.memory_share,
        "compute_share": report.compute_share,
        "work": report.work.model_dump() if report.work is not None else None,
        "roofline": report.roofline.model_dump() if report.roofline is not None else None,
        "kernels": kernels,
    }


INSPECT = Tool("Inspect", InspectArguments, _run)
