"""cuda-agent resume"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cuda_agent.agent.optimize import resume
from cuda_agent.cli.support.ending import played, print_run
from cuda_agent.cli.support.options import (
    CostArg,
    DebugArg,
    GpuMinutesArg,
    JsonArg,
    KeyFileArg,
    MinutesArg,
    TokensArg,
    limits,
)
from cuda_agent.cli.support.output import ProgressView


def command(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory that optimize left.")],
    turns: Annotated[int | None, typer.Option("--turns", min=1, help="Most turns of the agent, in all.")] = None,
    max_tokens: TokensArg = None,
    max_cost: CostArg = None,
    max_minutes: MinutesArg = None,
    max_gpu_minutes: GpuMinutesArg = None,
    api_key_file: KeyFileArg = None,
    as_json: JsonArg = False,
    debug: DebugArg = False,
) -> int:
    """Go on with a run that was killed, interrupted or spent a limit, at exactly the turn where it stopped."""
    changed = limits(turns, max_tokens, max_cost, max_minutes, max_gpu_minutes)
    with ProgressView(directory.name) as view:
        run, code = played(
            lambda: resume(directory, limits=changed, api_key_file=api_key_file, progress=view, watch=view.watch)
        )
    print_run(run, as_json=as_json)
    return code
