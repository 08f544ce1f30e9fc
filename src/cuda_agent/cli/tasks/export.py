"""cuda-agent tasks export"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from cuda_agent.cli.support.options import DebugArg, JsonArg
from cuda_agent.cli.support.output import emit, say
from cuda_agent.cli.support.settings import with_settings
from cuda_agent.tasks.dataset.export import choose, export
from cuda_agent.tasks.options import ChooseOptions


@with_settings(ChooseOptions)
def command(
    options: ChooseOptions,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the data set, filtered and compared.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Where to write; DIR/export if not given.")
    ] = None,
    as_json: JsonArg = False,
    debug: DebugArg = False,
) -> int:
    """Write parquet files, one for each split, and a dataset card; `datasets.load_dataset` loads the folder."""
    target = out or directory / "export"
    counts = export(directory, target, choose(directory, stack=options.stack, count=options.count))
    if as_json:
        emit(json.dumps({"folder": str(target), "splits": counts}, indent=1))
    else:
        say(f"{', '.join(f'{split} {number}' for split, number in counts.items())}: {target}")
    return 0
