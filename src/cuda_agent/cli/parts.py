"""cuda-agent optimize --parts: a module that can't be replaced whole, its parts in kernels and the rest in PyTorch."""

from collections.abc import Callable, Sequence
from pathlib import Path

from cuda_agent.cli.support.output import CommandAnswer, ProgressView, say, show
from cuda_agent.core.config import OptimizeOptions
from cuda_agent.core.errors import EXIT_INTERRUPTED, EXIT_NOT_PASSED, EXIT_OK, KeepOriginal, TaskError
from cuda_agent.core.extraction import Extraction, WholeModel
from cuda_agent.report.tables.extraction import extraction_view, whole_model_view
from cuda_agent.report.tables.suite import RunRow, suite_view
from cuda_agent.workspace.sandbox import resolve_level

#: optimizes task files into the folders of these names.
_Several = Callable[[Sequence[Path], Path], tuple[list[RunRow], int]]


def by_parts(
    model: Path, options: OptimizeOptions, out: Path | None, several: _Several, *, as_json: bool
) -> CommandAnswer:
    """Extracts the parts of a task, optimizes each with `several`, and judges the whole with the parts in place. Raises
    TaskError where no part can be a task, and the errors of `extract` and `apply`."""
    from cuda_agent.release.extract.apply import apply, optimized
    from cuda_agent.release.extract.extract import extract
    from cuda_agent.release.extract.specs import whole_model_source

    judge, whole = options.judge, whole_model_source(str(model), cwd=Path.cwd())
    folder = out if out is not None else Path("extracted") / whole.name
    with ProgressView(whole.name) as view:
        level = resolve_level(judge.sandbox)
        extraction, note = extract(whole, folder, model=str(model), device=judge.device, level=level, say=view)
    check_parts(extraction, folder)
    if not as_json:
        show(extraction_view(extraction, note))
    rows, code = several([folder / task.file for task in extraction.tasks], folder / "runs")
    if not as_json:
        show(suite_view(rows))
    if code == EXIT_INTERRUPTED or not any(row.state == "passed" for row in rows):
        again = f"resume what was interrupted, then cuda-agent apply {folder} {folder / 'runs'}"
        say(
            "no part is faster: keep the original"
            if code == KeepOriginal.exit_code
            else f"no part was replaced; {again}"
        )
        return CommandAnswer(extraction, [], code=code)
    parts, notes = optimized(extraction, [folder / "runs"])
    with ProgressView(whole.name) as view:
        record = apply(extraction, parts, judge, notes=notes, say=view)
    answer = put_together(record, [folder, *(part.run for part in parts)])
    if answer.code == EXIT_OK:
        say(f"next: cuda-agent export {folder} --as package")
    return answer


def put_together(record: WholeModel, folders: Sequence[Path]) -> CommandAnswer:
    """Writes the record of a whole model into each folder: `promote` looks for it beside each run."""
    for folder in folders:
        record.write(folder)
    code = EXIT_OK if record.closest_attempt is None else KeepOriginal.exit_code
    return CommandAnswer(record, [whole_model_view(record)], code=code if record.speedup else EXIT_NOT_PASSED)


def check_parts(extraction: Extraction, folder: Path) -> None:
    """Raises TaskError where nothing of the model can be a task, and says why."""
    if extraction.tasks:
        return
    if not extraction.left_out:
        cause = f"No part of {extraction.model} can be a task: all its steps stand in the model's own forward"
        raise TaskError(cause, "Move those before and after the break into submodules, and call these")
    first = max(extraction.left_out, key=lambda one: one.share)
    cause = f"No part of {extraction.model} can be a task; {first.kind} ({first.paths[0]}): {first.reason}"
    raise TaskError(cause, f"Raise --operators of extract, or optimize it as it is: {folder / 'whole.py'}")
