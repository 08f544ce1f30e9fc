"""cuda-agent tasks import"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from cuda_agent.cli.support.options import DebugArg, JsonArg
from cuda_agent.cli.support.output import emit, say
from cuda_agent.tasks.dataset.importing import read_published, write_candidates


def command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Parquet with columns ops, data_source, code.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the new data set.")],
    as_json: JsonArg = False,
    debug: DebugArg = False,
) -> int:
    """Read the published data set's format as candidates of a new folder."""
    tasks = read_published(file)
    path = write_candidates(out, tasks)
    if as_json:
        emit(json.dumps({"file": str(path), "tasks": len(tasks)}, indent=1))
    else:
        say(f"{len(tasks)} tasks: {path}")
    return 0
