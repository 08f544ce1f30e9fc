"""cuda-agent tasks fingerprint"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from cuda_agent.agent.device import resolve_device
from cuda_agent.cli.support.options import DebugArg, DeviceArg, DeviceOption, JsonArg, SandboxArg, SandboxOption
from cuda_agent.cli.support.output import ProgressView, emit, say
from cuda_agent.cli.tasks.decontaminate import MemoryArg
from cuda_agent.tasks.captured import MEMORY_MIB
from cuda_agent.tasks.decontaminate.capture import capturing
from cuda_agent.tasks.decontaminate.references import write_fingerprints
from cuda_agent.workspace.sandbox import resolve_level


def command(
    path: Annotated[str, typer.Argument(metavar="PATH", help="The evaluation set, as --against takes it.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where to write.")],
    device: DeviceArg = DeviceOption.CPU,
    memory_mib: MemoryArg = MEMORY_MIB,
    sandbox: SandboxArg = SandboxOption.AUTO,
    as_json: JsonArg = False,
    debug: DebugArg = False,
) -> int:
    """Make a file that tasks can be compared with and that holds no line of the evaluation set."""
    with ProgressView("tasks fingerprint") as view:
        capture = capturing(resolve_device(device.value), resolve_level(sandbox.value), memory_mib)
        found = write_fingerprints(out, path, capture, lambda text: view("fingerprint", text))
    graphs = sum(one.graph is not None for one in found)
    if as_json:
        emit(json.dumps({"file": str(out), "tasks": len(found), "graphs": graphs}, indent=1))
    else:
        say(f"{len(found)} evaluation tasks, {graphs} of them with their operator graph: {out}")
    return 0
