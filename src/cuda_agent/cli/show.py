"""cuda-agent show, cuda-agent replay"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from cuda_agent.agent import replay as replaying
from cuda_agent.agent.storage.rundir import RunDirectory
from cuda_agent.agent.storage.store import ContentStore
from cuda_agent.agent.storage.transcript import read_transcript
from cuda_agent.cli.support.output import CommandAnswer, ProgressView, answers
from cuda_agent.cli.support.settings import with_settings
from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Verdict
from cuda_agent.core.errors import EXIT_NOT_PASSED, EXIT_OK, StoreError
from cuda_agent.core.records import Candidate, Trajectory, Turn
from cuda_agent.core.settings import Settings
from cuda_agent.report.tables.replay import replay_view
from cuda_agent.report.tables.trajectory import trajectory_view
from cuda_agent.report.tables.transcript import transcript_view

RunArg = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory of optimize.")]


@answers
def show(directory: RunArg) -> CommandAnswer:
    """Page through a run: turns, calls, results, times, and each candidate as a diff against the one before."""
    run = RunDirectory(directory)
    task, options, _ = run.read_start()
    turns = read_transcript(run.path)
    document = {"task": task.name, "policy": options.policy, "turns": [t.model_dump(mode="json") for t in turns]}
    title = Text(f"{task.name}, policy {options.policy}, {len(turns)} turns", style="bold")
    return CommandAnswer({"schema_version": 1, **document}, [title, *_parts(run, turns)], paged=True)


def _parts(run: RunDirectory, turns: tuple[Turn, ...]) -> Iterator[RenderableType]:
    store = ContentStore(run.path)

    def candidate(digest: str) -> Candidate | None:
        try:
            return store.candidate(digest)
        except StoreError:
            return None

    yield from transcript_view(turns, candidate)
    ended = Trajectory.find(run.path)
    if ended is not None:
        yield trajectory_view(ended)
    else:
        yield Text(f"The run hasn't ended; it may be at work, or: cuda-agent resume {run.path}")
    inner = sorted(str(path) for path in (*run.path.glob("agent-*"), *run.path.glob("seed")))
    if inner:
        yield Text(f"Runs inside, to be shown each: {', '.join(inner)}")


@with_settings(JudgeOptions, only=("timing_budget_s",), defaults=False, file=False)
def replay(settings: Settings, directory: RunArg) -> CommandAnswer:
    """Judge every candidate of a recorded run again, and print the times beside the recorded ones. No key is needed.

    The exit code is 9 if a candidate that had passed no longer does."""
    budget_s = settings.over({"device": "cpu"}).parse(JudgeOptions).timing_budget_s if settings.values else None
    rows = []
    with ProgressView(directory.name) as view:
        for row in replaying.replay(directory, progress=view, timing_budget_s=budget_s):
            rows.append(row)
            view("final", f"turn {row.turn}: {row.evaluation.verdict.value}")
    lost = any(
        row.recorded_verdict == Verdict.PASSED.value and row.evaluation.verdict is not Verdict.PASSED for row in rows
    )
    document = {"schema_version": 1, "candidates": [row.model_dump(mode="json") for row in rows]}
    return CommandAnswer(document, [replay_view(rows)], code=EXIT_NOT_PASSED if lost else EXIT_OK)
