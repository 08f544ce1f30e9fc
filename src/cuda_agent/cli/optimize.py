"""cuda-agent optimize"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from cuda_agent.agent.optimize import optimize
from cuda_agent.cli.support.ending import played, print_run
from cuda_agent.cli.support.language_model import (
    BaseUrlArg,
    ContextArg,
    ModelArg,
    PricesArg,
    ProtocolArg,
    ProtocolOption,
    ReasoningArg,
    ReasoningOption,
    TemperatureArg,
    ToolsArg,
    ToolsOption,
    language_model,
)
from cuda_agent.cli.support.options import (
    CostArg,
    DebugArg,
    DeviceArg,
    DeviceOption,
    GpuMinutesArg,
    JsonArg,
    KeyFileArg,
    MinutesArg,
    PrecisionArg,
    SandboxArg,
    SandboxOption,
    SeedOption,
    TimingArg,
    TokensArg,
    TritonArg,
    limits,
)
from cuda_agent.cli.support.output import ProgressView, emit, say, show
from cuda_agent.core.enums import Precision
from cuda_agent.core.errors import EXIT_INTERRUPTED, EXIT_OK, CudaAgentError, NotCovered, TaskError, UsageError
from cuda_agent.core.records import Trajectory
from cuda_agent.report.tables.suite import RunRow, suite_view, summary
from cuda_agent.report.tables.trajectory import trajectory_view


def command(
    tasks: Annotated[list[Path], typer.Argument(metavar="TASK.py…", help="Task files, or folders of them.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Run directory; for several tasks the folder of them.")
    ] = None,
    device: DeviceArg = DeviceOption.AUTO,
    policy: Annotated[
        str, typer.Option("--policy", help="playbook, llm, or the folder of a trained checkpoint.")
    ] = "playbook",
    precision: PrecisionArg = Precision.TF32,
    turns: Annotated[int, typer.Option("--turns", min=1, help="Most turns of the agent.")] = 60,
    max_tokens: TokensArg = None,
    max_cost: CostArg = None,
    max_minutes: MinutesArg = None,
    max_gpu_minutes: GpuMinutesArg = None,
    parallel: Annotated[
        int, typer.Option("--parallel", min=1, max=64, help="Independent agents on the task; the best of all counts.")
    ] = 1,
    seed_with: Annotated[
        SeedOption | None, typer.Option("--seed-with", help="Whose best candidate is in the workspace at the start.")
    ] = None,
    model: ModelArg = None,
    base_url: BaseUrlArg = None,
    api_key_file: KeyFileArg = None,
    temperature: TemperatureArg = None,
    context_tokens: ContextArg = 131_072,
    reasoning: ReasoningArg = ReasoningOption.KEEP,
    tools: ToolsArg = ToolsOption.NATIVE,
    prices: PricesArg = None,
    protocol: ProtocolArg = ProtocolOption.OPENAI,
    timing_budget: TimingArg = None,
    sandbox: SandboxArg = SandboxOption.AUTO,
    allow_triton: TritonArg = False,
    as_json: JsonArg = False,
    debug: DebugArg = False,
) -> int:
    """Make a task faster: writes kernels, verifies them, times them, and leaves a run directory."""
    settings: dict[str, Any] = {"device": device.value, "policy": policy, "precision": precision.value}
    settings |= {"limits": limits(turns, max_tokens, max_cost, max_minutes, max_gpu_minutes), "parallel": parallel}
    settings |= {"sandbox": sandbox.value, "command": ("cuda-agent", *sys.argv[1:])}
    settings["seed_with"] = None if seed_with is None else seed_with.value
    settings["api_key_file"] = api_key_file
    settings["llm"] = language_model(
        policy, model, base_url, prices, max_cost, temperature=temperature, context_tokens=context_tokens,
        reasoning=reasoning.value, tools=tools.value, protocol=protocol.value,
    )  # fmt: skip
    if timing_budget is not None:
        settings["timing_budget_s"] = timing_budget
    settings["comparison"] = "triton" if allow_triton else None
    files = _files(tasks)
    if len(files) == 1 and not tasks[0].is_dir():
        return _one(files[0], out, settings, as_json=as_json)
    return _several(files, out, settings, as_json=as_json)


def _files(tasks: list[Path]) -> list[Path]:
    """Task files in order; a folder stands for its .py files, but those that begin with an underscore."""
    files: list[Path] = []
    for path in tasks:
        if not path.is_dir():
            files.append(path)
            continue
        inside = sorted(item for item in path.glob("*.py") if not item.name.startswith("_"))
        if not inside:
            raise UsageError(f"The folder {path} holds no task files (*.py)", "Name a folder of task files")
        files += inside
    return files


def _one(path: Path, out: Path | None, settings: dict[str, Any], *, as_json: bool) -> int:
    run, code = _run(path, out, settings)
    print_run(run, as_json=as_json)
    return code


def _run(path: Path, out: Path | None, settings: dict[str, Any]) -> tuple[Trajectory, int]:
    with ProgressView(path.stem) as view:
        return played(lambda: optimize(path, out=out, progress=view, watch=view.watch, **settings))


def _several(files: list[Path], out: Path | None, settings: dict[str, Any], *, as_json: bool) -> int:
    """One after the other. A task that can't be judged is a row; what no task can survive ends the suite."""
    rows: list[RunRow] = []
    codes: list[int] = []
    for number, (path, name) in enumerate(zip(files, _names(files), strict=True), start=1):
        say(f"{name} ({number} of {len(files)})")
        try:
            trajectory, code = _run(path, out / name if out is not None else None, settings)
        except (TaskError, UsageError) as error:
            rows.append(RunRow(name, error=str(error)))
            codes.append(error.exit_code)
            continue
        except CudaAgentError as error:
            if not rows:
                raise
            rows.append(RunRow(name, error=str(error)))
            codes.append(error.exit_code)
            continue
        rows.append(RunRow(name, trajectory))
        codes.append(code)
        if not as_json:
            show(trajectory_view(trajectory), "")
        if codes[-1] == EXIT_INTERRUPTED:
            break
    if as_json:
        emit(json.dumps(_document(rows)))
    else:
        show(suite_view(rows))
    return _together(codes)


def _names(files: list[Path]) -> list[str]:
    """The files' stems, made different from each other by the folder's name or a number."""
    stems = [path.stem for path in files]
    names: list[str] = []
    for path in files:
        name = path.stem if stems.count(path.stem) == 1 else f"{path.absolute().parent.name}-{path.stem}"
        number = 1
        while (unique := name if number == 1 else f"{name}-{number}") in names:
            number += 1
        names.append(unique)
    return names


def _document(rows: list[RunRow]) -> dict[str, Any]:
    runs = [
        {"task": row.task, "state": row.state, "note": row.note}
        | ({"trajectory": row.result.model_dump(mode="json")} if row.result is not None else {})
        for row in rows
    ]
    return {"schema_version": 1, "runs": runs, "summary": summary(rows)}


def _together(codes: list[int]) -> int:
    """Of several tasks: interrupted, else the first failure; "not covered" is one only where it's all there is."""
    if EXIT_INTERRUPTED in codes:
        return EXIT_INTERRUPTED
    honest = (EXIT_OK, NotCovered.exit_code)
    failures = [code for code in codes if code not in honest]
    if failures:
        return failures[0]
    return EXIT_OK if EXIT_OK in codes else NotCovered.exit_code
