"""cuda-agent tasks fingerprint"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from cuda_agent.cli.support.options import DebugArg, JsonArg
from cuda_agent.cli.support.output import ProgressView, emit, say
from cuda_agent.cli.support.settings import with_settings
from cuda_agent.tasks.decontaminate.references import capturing, write_fingerprints
from cuda_agent.tasks.options import CPU, DecontaminateOptions
from cuda_agent.workspace.sandbox import resolve_level


@with_settings(DecontaminateOptions, only=("device", "memory_mib", "sandbox"), base=CPU)
def command(
    options: DecontaminateOptions,
    path: Annotated[str, typer.Argument(metavar="PATH", help="The evaluation set, as --against takes it.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where to write.")],
    as_json: JsonArg = False,
    debug: DebugArg = False,
) -> int:
    """Make a file that tasks can be compared with and that holds no line of the evaluation set."""
    with ProgressView("tasks fingerprint") as view:
        capture = capturing(options.device, resolve_level(options.sandbox), options.memory_mib)
        found = write_fingerprints(out, path, capture, lambda text: view("fingerprint", text))
    graphs = sum(one.graph is not None for one in found)
    if as_json:
        emit(json.dumps({"file": str(out), "tasks": len(found), "graphs": graphs}, indent=1))
    else:
        say(f"{len(found)} evaluation tasks, {graphs} of them with their operator graph: {out}")
    return 0
