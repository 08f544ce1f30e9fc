"""cuda-agent init"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from cuda_agent.agent.taskfile import load_task
from cuda_agent.cli.support.options import DebugArg
from cuda_agent.cli.support.output import show
from cuda_agent.cli.support.settings import with_settings
from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.errors import EXIT_OK, UsageError


@with_settings(JudgeOptions, only=("device", "precision"))
def command(
    options: JudgeOptions,
    task: Annotated[Path, typer.Argument(metavar="TASK.py", help="A file in the KernelBench convention.")],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The new workspace.")],
    debug: DebugArg = False,
) -> int:
    """Lay out a workspace for a task."""
    from cuda_agent.workspace import layout

    record = load_task(task)
    if directory.is_file() or (directory.is_dir() and any(directory.iterdir())):
        raise UsageError(f"{directory} exists and isn't an empty folder", "Choose another DIR")
    layout.create(record, directory, options=options)
    show(Text(f"workspace for {record.name} ({options.device.value}, {options.precision.value}): {directory}"))
    show(Text("Read SKILL.md there; write model_new.py and kernels/; then: cuda-agent judge " + str(directory)))
    return EXIT_OK
