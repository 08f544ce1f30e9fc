"""cuda-agent tasks filter"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from cuda_agent.cli.support.options import DebugArg, JsonArg
from cuda_agent.cli.support.output import ProgressView, emit, say
from cuda_agent.cli.support.settings import with_settings
from cuda_agent.core.errors import EXIT_NOT_PASSED, EXIT_OK
from cuda_agent.tasks.filter.funnel import Funnel, funnel
from cuda_agent.tasks.filter.measurements import read_measured
from cuda_agent.tasks.filter.options import FilterRunOptions
from cuda_agent.tasks.filter.run import Filtered, Shard, filter_folder, read_candidates


@with_settings(FilterRunOptions)
def command(
    options: FilterRunOptions,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the data set, with its candidates.")],
    as_json: JsonArg = False,
    debug: DebugArg = False,
) -> int:
    """Ask every rule of every candidate, and time those that keep them; goes on where the folder's files end."""
    part = None if options.shard is None else Shard.parse(options.shard)
    with ProgressView("tasks filter") as view:
        done = filter_folder(
            directory, options, lambda text: view("filter", text),
            limit=options.limit, shard=part, stop_after_s=options.stop_after_s,
        )  # fmt: skip
    flow = funnel(read_candidates(directory), read_measured(done.path).by_key)
    flow.write(directory)
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
