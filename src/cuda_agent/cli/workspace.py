"""cuda-agent init, cuda-agent judge, cuda-agent mcp: a workspace for an agent of your own"""

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from cuda_agent.agent.device import resolve_device
from cuda_agent.agent.taskfile import load_task
from cuda_agent.cli.support.output import CommandAnswer, DebugArg, ProgressView, show
from cuda_agent.cli.support.settings import with_settings
from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Verdict
from cuda_agent.core.errors import EXIT_NOT_PASSED, EXIT_OK, UsageError
from cuda_agent.core.files import check_unused
from cuda_agent.core.settings import Settings
from cuda_agent.report.tables.evaluation import evaluation_view
from cuda_agent.reward import reward
from cuda_agent.workspace import layout


@with_settings(JudgeOptions, only=("device", "precision"))
def init(
    options: JudgeOptions,
    task: Annotated[Path, typer.Argument(metavar="TASK.py", help="A file in the KernelBench convention.")],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The new workspace.")],
    debug: DebugArg = False,
) -> int:
    """Make a workspace for a task."""
    record = load_task(task)
    check_unused(directory)
    layout.create(record, directory, options=options)
    show(Text(f"workspace for {record.name} ({options.device.value}, {options.precision.value}): {directory}"))
    show(Text("Read SKILL.md there; write model_new.py and kernels/; then: cuda-agent judge " + str(directory)))
    return EXIT_OK


@with_settings(JudgeOptions, only=("timing_budget_s",), defaults=False)
def judge(
    settings: Settings,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A workspace, or a run directory that holds one.")],
    sanitize: Annotated[
        bool, typer.Option("--sanitize", help="Also run compute-sanitizer's memcheck and racecheck (cuda).")
    ] = False,
) -> CommandAnswer:
    """Judge a workspace: build, verify, profile. The exit code is 0 if it passed, 9 if it didn't."""
    from cuda_agent.judge import evaluate

    folder = directory / "workspace" if (directory / "workspace" / ".cuda-agent").is_dir() else directory
    workspace = layout.open_workspace(folder)
    options = settings.over(workspace.options.model_dump()).parse(JudgeOptions)
    resolve_device(options.device.value)
    candidate = workspace.snapshot()
    if "model_new.py" not in candidate.files:
        raise UsageError(f"{folder} has no model_new.py yet", "Write it, and the kernels under kernels/, first")
    with ProgressView(workspace.task.name) as progress:
        evaluation = evaluate(workspace.task, candidate, options, progress, sanitize=sanitize)
    return CommandAnswer(
        evaluation,
        [evaluation_view(evaluation, reward(evaluation, options.reward_baseline), str(folder))],
        code=EXIT_OK if evaluation.verdict is Verdict.PASSED else EXIT_NOT_PASSED,
    )


def mcp(
    directory: Annotated[Path, typer.Argument(metavar="[WORKSPACE]", help="Made by `cuda-agent init`.")] = Path(),
    debug: DebugArg = False,
) -> int:
    """Serve the tools of a workspace to an agent of your own, over the Model Context Protocol (stdio)."""
    from cuda_agent.agent.mcp import serve

    workspace = layout.open_workspace(directory)
    resolve_device(workspace.options.device.value)
    serve(workspace)
    return EXIT_OK
