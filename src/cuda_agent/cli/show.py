"""cuda-agent show"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from cuda_agent.agent.storage.rundir import RunDirectory
from cuda_agent.agent.storage.store import ContentStore
from cuda_agent.agent.storage.transcript import read_transcript
from cuda_agent.cli.support.options import DebugArg, JsonArg
from cuda_agent.cli.support.output import console, emit
from cuda_agent.core.errors import EXIT_OK, StoreError
from cuda_agent.core.records import Candidate, Trajectory, Turn
from cuda_agent.report.tables.trajectory import trajectory_view
from cuda_agent.report.tables.transcript import transcript_view


def command(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory that optimize left.")],
    as_json: JsonArg = False,
    debug: DebugArg = False,
) -> int:
    """Page through a run: turns, calls, results, times, each candidate as a diff against the one before."""
    run = RunDirectory(directory)
    task, options, _ = run.read_start()
    turns = read_transcript(run.path)
    if as_json:
        document = {"task": task.name, "policy": options.policy, "turns": [t.model_dump(mode="json") for t in turns]}
        emit(json.dumps({"schema_version": 1, **document}))
        return EXIT_OK
    out = console()
    parts = [Text(f"{task.name}, policy {options.policy}, {len(turns)} turns", style="bold"), *_parts(run, turns)]
    if out.is_terminal:
        with out.pager(styles=True):
            for part in parts:
                out.print(part)
    else:
        for part in parts:
            out.print(part)
    return EXIT_OK


def _parts(run: RunDirectory, turns: tuple[Turn, ...]) -> list[RenderableType]:
    store = ContentStore(run.path)

    def candidate(digest: str) -> Candidate | None:
        try:
            return store.candidate(digest)
        except StoreError:
            return None

    parts = list(transcript_view(turns, candidate))
    if (run.path / Trajectory.file_name).is_file():
        parts.append(trajectory_view(Trajectory.read(run.path)))
    else:
        parts.append(Text(f"The run hasn't ended; it may be at work, or: cuda-agent resume {run.path}"))
    inner = sorted(str(path) for path in (*run.path.glob("agent-*"), *run.path.glob("seed")))
    if inner:
        parts.append(Text(f"Runs inside, to be shown each: {', '.join(inner)}"))
    return parts
