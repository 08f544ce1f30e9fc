"""cuda-agent tasks merge"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from cuda_agent.cli.support.options import DebugArg, JsonArg
from cuda_agent.cli.support.output import emit, say
from cuda_agent.tasks.filter.measurements import merge


def command(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the data set that takes them in.")],
    sources: Annotated[
        list[Path], typer.Argument(metavar="SHARD…", help="Folders in which `tasks filter` worked, or files of theirs.")
    ],
    as_json: JsonArg = False,
    debug: DebugArg = False,
) -> int:
    """Take in the measurements of other runs of `tasks filter`."""
    added = merge(directory, sources)
    if as_json:
        emit(json.dumps(added, indent=1))
    else:
        for name, count in added.items():
            say(f"{count} measurements added: {directory / name}")
    return 0
