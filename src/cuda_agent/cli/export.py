"""cuda-agent export"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from cuda_agent.cli.options import DebugArg, JsonArg
from cuda_agent.cli.output import emit
from cuda_agent.core.errors import EXIT_OK
from cuda_agent.release.export.export import Kind, export


def command(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run directory that optimize left, or an entry of a registry.")
    ],
    kind: Annotated[Kind, typer.Option("--as", help="What to make of it.")],
    name: Annotated[str | None, typer.Option("--name", help="Of the Python package; by default the task's.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="A new folder; by default exports/NAME.")
    ] = None,
    as_json: JsonArg = False,
    debug: DebugArg = False,
) -> int:
    """Make the best candidate a project of its own that needs nothing of cuda-agent. Runs the task once, sandboxed."""
    folder, verified = export(run, kind, name=name, out=out)
    if as_json:
        document = {"directory": str(folder), "as": kind.value, "verified": verified.model_dump(mode="json")}
        emit(json.dumps({"schema_version": 1, **document}))
    else:
        emit(f"{verified.task}: exported to {folder}; see its README.md")
    return EXIT_OK
