"""cuda-agent export"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from cuda_agent.cli.support.options import DebugArg, JsonArg
from cuda_agent.cli.support.output import emit, say
from cuda_agent.core.errors import EXIT_OK
from cuda_agent.release.export.export import ExportKind, export
from cuda_agent.release.export.summary import slower_than_eager


def command(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run directory that optimize left, or an entry of a registry.")
    ],
    kind: Annotated[ExportKind, typer.Option("--as", help="What to make of it.")],
    name: Annotated[str | None, typer.Option("--name", help="Of the Python package; by default the task's.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="A new folder; by default exports/NAME.")
    ] = None,
    as_json: JsonArg = False,
    debug: DebugArg = False,
) -> int:
    """Make the best candidate a project of its own that needs nothing of cuda-agent. Runs the task once, sandboxed."""
    made = export(run, kind, name=name, out=out)
    if as_json:
        document = {"directory": str(made.folder), "as": kind.value, "verified": made.verified.model_dump(mode="json")}
        emit(json.dumps({"schema_version": 1, **document}))
    else:
        emit(f"{made.verified.task}: exported to {made.folder}; see its README.md")
    if slower_than_eager(made.evaluation):
        say("note: these kernels are slower than eager; the original is the better choice")
    return EXIT_OK
