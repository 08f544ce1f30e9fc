"""cuda-agent tasks filter, tasks merge"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from cuda_agent.cli.support.output import CommandAnswer, ProgressView, answers
from cuda_agent.cli.support.settings import with_settings
from cuda_agent.core.errors import EXIT_NOT_PASSED, EXIT_OK
from cuda_agent.tasks.filter import measurements
from cuda_agent.tasks.filter.funnel import Funnel, funnel
from cuda_agent.tasks.filter.options import FilterRunOptions
from cuda_agent.tasks.filter.run import Filtered, Shard, filter_folder, read_candidates


@with_settings(FilterRunOptions)
def filter_candidates(
    options: FilterRunOptions,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the data set, with its candidates.")],
) -> CommandAnswer:
    """Check every rule on every candidate, and time those that keep all rules. Results are appended to the folder."""
    part = None if options.shard is None else Shard.parse(options.shard)
    with ProgressView("tasks filter") as view:
        done = filter_folder(
            directory, options, lambda text: view("filter", text),
            limit=options.limit, shard=part, stop_after_s=options.stop_after_s,
        )  # fmt: skip
    flow = funnel(read_candidates(directory), measurements.read_measured(done.path).by_key)
    flow.write(directory)
    document = {
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
    return CommandAnswer(document, said=_lines(done, flow), code=EXIT_NOT_PASSED if done.left else EXIT_OK)


def _lines(done: Filtered, flow: Funnel) -> Iterator[str]:
    for stage in flow.all.stages:
        yield f"{stage.rule:<14}{stage.asked:>7} asked {stage.broke:>6} broke it"
    for name, reason in done.left.items():
        yield f"{name}: not timed: {reason}"
    if done.steps_s:
        yield "seconds a task: " + ", ".join(f"{name} {value:.2f}" for name, value in done.steps_s.items())
    if done.waiting:
        yield f"{done.waiting} wait for the next run"
    rate = "" if done.a_minute is None else f", {done.a_minute:.0f} a minute"
    yield f"{done.passed} of {done.asked} passed{rate}; {done.known} were known: {done.path}"


@answers
def merge(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the data set that gets them.")],
    sources: Annotated[
        list[Path], typer.Argument(metavar="SHARD…", help="Folders of other runs of `tasks filter`, or their files.")
    ],
) -> CommandAnswer:
    """Add the measurements of other runs of `tasks filter` to a folder."""
    added = measurements.merge(directory, sources)
    return CommandAnswer(
        added, said=[f"{count} measurements added: {directory / name}" for name, count in added.items()]
    )
