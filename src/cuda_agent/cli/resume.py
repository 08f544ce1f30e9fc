"""cuda-agent resume"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cuda_agent.agent.optimize import resume
from cuda_agent.cli.support.ending import played, print_run
from cuda_agent.cli.support.options import DebugArg, JsonArg, KeyFileArg
from cuda_agent.cli.support.output import ProgressView
from cuda_agent.cli.support.settings import with_settings
from cuda_agent.core.config import Limits


@with_settings(Limits, defaults=False)
def command(
    options: Limits,
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory that optimize left.")],
    api_key_file: KeyFileArg = None,
    as_json: JsonArg = False,
    debug: DebugArg = False,
) -> int:
    """Go on with a run that was killed, interrupted or spent a limit, at exactly the turn where it stopped."""
    given = options.model_dump(exclude_unset=True)
    with ProgressView(directory.name) as view:
        run, code = played(
            lambda: resume(directory, limits=given, api_key_file=api_key_file, progress=view, watch=view.watch)
        )
    print_run(run, as_json=as_json)
    return code
