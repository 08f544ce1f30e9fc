"""cuda-agent judge"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cuda_agent.agent.device import resolve_device
from cuda_agent.cli.support.options import DebugArg, JsonArg
from cuda_agent.cli.support.output import ProgressView, emit, show
from cuda_agent.cli.support.settings import with_settings
from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Verdict
from cuda_agent.core.errors import EXIT_NOT_PASSED, EXIT_OK, UsageError
from cuda_agent.core.settings import Settings
from cuda_agent.report.tables.evaluation import evaluation_view
from cuda_agent.reward import reward


@with_settings(JudgeOptions, only=("timing_budget_s",), defaults=False)
def command(
    settings: Settings,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A workspace, or a run directory that holds one.")],
    sanitize: Annotated[
        bool, typer.Option("--sanitize", help="Also run compute-sanitizer's memcheck and racecheck (cuda).")
    ] = False,
    as_json: JsonArg = False,
    debug: DebugArg = False,
) -> int:
    """Judge a workspace: build, verify, profile. Exit code 0 when it passed, 9 when it didn't."""
    from cuda_agent.judge import evaluate
    from cuda_agent.workspace import layout

    folder = directory / "workspace" if (directory / "workspace" / ".cuda-agent").is_dir() else directory
    workspace = layout.open_workspace(folder)
    options = settings.over(workspace.options.model_dump()).parse(JudgeOptions)
    resolve_device(options.device.value)
    candidate = workspace.snapshot()
    if "model_new.py" not in candidate.files:
        raise UsageError(f"{folder} has no model_new.py yet", "Write it, and the kernels under kernels/, first")
    with ProgressView(workspace.task.name) as progress:
        evaluation = evaluate(workspace.task, candidate, options, progress, sanitize=sanitize)
    if as_json:
        emit(evaluation.to_json())
    else:
        show(evaluation_view(evaluation, reward(evaluation, options.reward_baseline), str(folder)))
    return EXIT_OK if evaluation.verdict is Verdict.PASSED else EXIT_NOT_PASSED
