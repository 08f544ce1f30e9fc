"""cuda-agent optimize, cuda-agent resume"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from cuda_agent.agent import optimize as running
from cuda_agent.agent.run import Unsaved
from cuda_agent.agent.taskfile import load_task
from cuda_agent.cli.parts import by_parts
from cuda_agent.cli.support.output import CommandAnswer, DebugArg, JsonArg, ProgressView, say, show
from cuda_agent.cli.support.settings import KeyFileArg, PricesArg, complete_run, with_settings
from cuda_agent.core.config import Limits, OptimizeOptions
from cuda_agent.core.enums import Verdict
from cuda_agent.core.errors import (
    EXIT_INTERRUPTED,
    EXIT_NOT_PASSED,
    EXIT_OK,
    EXIT_PLAYBOOK_FAILED,
    CudaAgentError,
    KeepOriginal,
    NotCovered,
    PolicyError,
    TaskError,
    UsageError,
)  # fmt: skip
from cuda_agent.core.files import unused
from cuda_agent.core.records import Trajectory
from cuda_agent.core.settings import Settings
from cuda_agent.report.tables.suite import RunRow, suite_view, summary
from cuda_agent.report.tables.trajectory import trajectory_view
from cuda_agent.reward import closest_attempt

#: plays a task file into a folder.
_Run = Callable[[Path, Path | None], tuple[Trajectory, int]]


@with_settings(OptimizeOptions, without=("judge.timing_stop",))
def optimize(
    settings: Settings,
    tasks: Annotated[list[Path], typer.Argument(metavar="TASK.py…", help="Task files, or folders of task files.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Run directory; for several tasks, the folder of these.")
    ] = None,
    api_key_file: KeyFileArg = None,
    prices: PricesArg = None,
    parts: Annotated[
        bool, typer.Option("--parts", help="Optimize each part of a module that can be replaced.")
    ] = False,
    as_json: JsonArg = False,
    debug: DebugArg = False,
) -> int:
    """Make a task faster: write kernels, verify and time them, and keep everything in a run directory."""
    complete_run(settings, prices)
    options = settings.parse(OptimizeOptions)

    def run(path: Path, folder: Path | None) -> tuple[Trajectory, int]:
        words = ("cuda-agent", *sys.argv[1:])
        with ProgressView(path.stem) as view:
            return played(
                lambda: running.start(
                    load_task(path), options, out=folder, api_key_file=api_key_file, command=words,
                    progress=view, watch=view.watch,
                )
            )  # fmt: skip

    files = _files(tasks)
    if parts and len(files) > 1:
        raise UsageError("--parts takes one module", "Name one file")
    if parts:

        def several(inside: Sequence[Path], folder: Path) -> tuple[list[RunRow], int]:
            return _played_all(inside, folder, run, as_json=as_json)

        return by_parts(files[0], options, out, several, as_json=as_json).print(as_json=as_json)
    if len(files) == 1 and not tasks[0].is_dir():
        return answer_of(*run(files[0], out)).print(as_json=as_json)
    rows, code = _played_all(files, out, run, as_json=as_json)
    return CommandAnswer(_document(rows), [suite_view(rows)], code=code).print(as_json=as_json)


@with_settings(Limits, defaults=False)
def resume(
    options: Limits,
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory of optimize.")],
    api_key_file: KeyFileArg = None,
) -> CommandAnswer:
    """Continue a run that was killed, interrupted or spent a limit, at exactly the turn where it stopped."""
    given = options.model_dump(exclude_unset=True)
    with ProgressView(directory.name) as view:
        run, code = played(
            lambda: running.resume(directory, limits=given, api_key_file=api_key_file, progress=view, watch=view.watch)
        )
    return answer_of(run, code)


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


def _played_all(files: Sequence[Path], out: Path | None, run: _Run, *, as_json: bool) -> tuple[list[RunRow], int]:
    """One after the other. A task that can't be judged is a row; what no task can survive ends the suite."""
    rows: list[RunRow] = []
    codes: list[int] = []
    for number, (path, name) in enumerate(zip(files, _names(files), strict=True), start=1):
        say(f"{name} ({number} of {len(files)})")
        try:
            trajectory, code = run(path, out / name if out is not None else None)
            rows.append(RunRow(name, trajectory))
            if not as_json:
                show(trajectory_view(trajectory), "")
        except CudaAgentError as error:
            if not rows and not isinstance(error, TaskError | UsageError):
                raise
            rows.append(RunRow(name, error=str(error)))
            code = error.exit_code
        codes.append(code)
        if code == EXIT_INTERRUPTED:
            break
    return rows, _together(codes)


def _names(files: Sequence[Path]) -> list[str]:
    """The files' stems, made different from each other by the folder's name or a number."""
    stems = [path.stem for path in files]
    names: list[str] = []
    for path in files:
        name = path.stem if stems.count(path.stem) == 1 else f"{path.absolute().parent.name}-{path.stem}"
        names.append(unused(name, names.__contains__))
    return names


def _document(rows: list[RunRow]) -> dict[str, Any]:
    runs = [
        {"task": row.task, "state": row.state, "note": row.note}
        | ({"trajectory": row.result.model_dump(mode="json")} if row.result is not None else {})
        for row in rows
    ]
    return {"schema_version": 1, "runs": runs, "summary": summary(rows)}


def _together(codes: list[int]) -> int:
    """Returns the exit code of several tasks: interrupted, else the first failure. "Keep the original" counts only
    where nothing is faster, and "not covered" only where there is nothing else."""
    if EXIT_INTERRUPTED in codes:
        return EXIT_INTERRUPTED
    honest = (EXIT_OK, KeepOriginal.exit_code, NotCovered.exit_code)
    failures = [code for code in codes if code not in honest]
    if failures:
        return failures[0]
    return next((code for code in honest if code in codes), EXIT_OK)


def played(play: Callable[[], Trajectory]) -> tuple[Trajectory, int]:
    """The run and its exit code. Where something of it could not be written, that is said, and the code is that of a
    file that can't be written; what was judged is there all the same."""
    try:
        run = play()
    except Unsaved as error:
        if error.trajectory.evaluation is None:
            raise
        say(f"error: {error}")
        return error.trajectory, error.exit_code
    return run, exit_code(run)


def answer_of(run: Trajectory, code: int) -> CommandAnswer:
    """The run as a table, with its exit code."""
    return CommandAnswer(run, [trajectory_view(run)], code=code)


def exit_code(trajectory: Trajectory) -> int:
    """0 when the best candidate passed and is faster; else 15, 130, 10, 7, 14 or 9 by how the run ended."""
    if trajectory.outcome == "interrupted":
        return EXIT_INTERRUPTED
    if trajectory.outcome == "policy_error":
        return PolicyError.exit_code
    if trajectory.evaluation is not None and trajectory.evaluation.verdict is Verdict.PASSED:
        return EXIT_OK if closest_attempt(trajectory.evaluation) is None else KeepOriginal.exit_code
    if trajectory.outcome == "gave_up" and trajectory.policy == "playbook":
        return EXIT_PLAYBOOK_FAILED
    return NotCovered.exit_code if trajectory.outcome == "not_covered" else EXIT_NOT_PASSED
