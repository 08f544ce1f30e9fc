"""cuda-agent tasks filter"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from cuda_agent.agent.device import resolve_device
from cuda_agent.cli.support.options import DebugArg, DeviceArg, DeviceOption, JsonArg, SandboxArg, SandboxOption
from cuda_agent.cli.support.output import ProgressView, emit, say
from cuda_agent.core.errors import EXIT_NOT_PASSED, EXIT_OK
from cuda_agent.tasks.filter.funnel import Funnel, write_funnel
from cuda_agent.tasks.filter.measurements import read_measured
from cuda_agent.tasks.filter.options import FilterOptions
from cuda_agent.tasks.filter.run import Filtered, Shard, filter_folder, read_candidates


def command(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the data set, with its candidates.")],
    device: DeviceArg = DeviceOption.AUTO,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Tasks checked at a time; as many as there are cores.")
    ] = None,
    tasks_a_process: Annotated[
        int,
        typer.Option("--tasks-a-process", metavar="N", min=1, help="So many may follow each other in one, if trusted."),
    ] = 1,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Most candidates to ask in this run.")] = None,
    limit_s: Annotated[
        float, typer.Option("--limit-s", metavar="SECONDS", help="What one task may take in either pass.")
    ] = 90.0,
    stop_after_s: Annotated[
        float | None,
        typer.Option("--stop-after-s", metavar="SECONDS", min=1, help="Begin no more tasks after so long."),
    ] = None,
    memory_mib: Annotated[
        int, typer.Option("--memory-mib", min=1, help="Most that one eager call may hold, weights and inputs included.")
    ] = 32768,
    window_ms: Annotated[
        tuple[float, float], typer.Option("--window-ms", metavar="LOW HIGH", help="Eager times that are kept.")
    ] = (1.0, 100.0),
    shard: Annotated[
        str | None, typer.Option("--shard", metavar="I/N", help="Only this part of the candidates; see `tasks merge`.")
    ] = None,
    sandbox: SandboxArg = SandboxOption.AUTO,
    as_json: JsonArg = False,
    debug: DebugArg = False,
) -> int:
    """Ask every rule of every candidate, and time those that keep them; goes on where the folder's files end."""
    values: dict[str, Any] = {"device": resolve_device(device.value), "workers": workers, "sandbox": sandbox.value}
    values |= {"limit_s": limit_s, "memory_mib": memory_mib, "tasks_a_process": tasks_a_process}
    values |= {"low_us": 1e3 * window_ms[0], "high_us": 1e3 * window_ms[1]}
    options = FilterOptions.parse(values)
    part = None if shard is None else Shard.parse(shard)
    with ProgressView("tasks filter") as view:
        done = filter_folder(
            directory, options, lambda text: view("filter", text), limit=limit, shard=part, stop_after_s=stop_after_s
        )
    flow = write_funnel(directory, read_candidates(directory), read_measured(done.path).by_key)
    if as_json:
        emit(json.dumps(_summary(done), indent=1))
    else:
        _tell(done, flow)
    return EXIT_NOT_PASSED if done.left else EXIT_OK


def _summary(done: Filtered) -> dict[str, Any]:
    return {
        "file": str(done.path),
        "known": done.known,
        "asked": done.asked,
        "passed": done.passed,
        "findings": done.findings,
        "left": done.left,
        "waiting": done.waiting,
        "seconds": {name: round(value, 1) for name, value in done.seconds.items()},
        "steps_s": done.steps_s,
        "a_minute": None if done.a_minute is None else round(done.a_minute, 1),
    }


def _tell(done: Filtered, funnel: Funnel) -> None:
    for stage in funnel.all.stages:
        say(f"{stage.rule:<14}{stage.asked:>7} asked {stage.broke:>6} broke it")
    for name, reason in done.left.items():
        say(f"{name}: not timed: {reason}")
    if done.steps_s:
        say("seconds a task: " + ", ".join(f"{name} {value:.2f}" for name, value in done.steps_s.items()))
    if done.waiting:
        say(f"{done.waiting} wait for the next run")
    rate = "" if done.a_minute is None else f", {done.a_minute:.0f} a minute"
    say(f"{done.passed} of {done.asked} passed{rate}; {done.known} were known: {done.path}")
