"""cuda-agent export"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cuda_agent.cli.support.output import CommandAnswer, answers, say
from cuda_agent.release.export import export as exporting
from cuda_agent.release.export.files import slower_than_eager


@answers
def export(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run directory that optimize left, or an entry of a registry.")
    ],
    kind: Annotated[exporting.ExportKind, typer.Option("--as", help="What to make of it.")],
    name: Annotated[str | None, typer.Option("--name", help="Of the Python package; by default the task's.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="A new folder; by default exports/NAME.")
    ] = None,
) -> CommandAnswer:
    """Make the best candidate a project of its own that needs nothing of cuda-agent. Runs the task once, sandboxed."""
    made = exporting.export(run, kind, name=name, out=out)
    if slower_than_eager(made.evaluation):
        say("note: these kernels are slower than eager; the original is the better choice")
    document = {"directory": str(made.folder), "as": kind.value, "verified": made.verified.model_dump(mode="json")}
    shown = [f"{made.verified.task}: exported to {made.folder}; see its README.md"]
    return CommandAnswer({"schema_version": 1, **document}, shown)
