"""cuda-agent extract, cuda-agent apply"""

from pathlib import Path
from typing import Annotated

import typer

from cuda_agent.cli.parts import check_parts, put_together
from cuda_agent.cli.support.output import CommandAnswer, DebugArg, JsonArg, ProgressView, emit, say, show
from cuda_agent.cli.support.settings import with_settings
from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.errors import EXIT_OK, UsageError
from cuda_agent.report.tables.extraction import extraction_view
from cuda_agent.workspace.sandbox import resolve_level


@with_settings(JudgeOptions, only=("device", "sandbox"), file=False)
def extract(
    options: JudgeOptions,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="MODEL.py, FILE.py:Class or module:Class.")],
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="[NAME=]SPEC", help="An input: ids=int64[2,128]:0..32000 or use_cache=False."),
    ] = None,
    init: Annotated[
        list[str] | None,
        typer.Option("--init", metavar="[NAME=]VALUE", help="A constructor's argument: literal, or module:Class(…)."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the tasks; by default extracted/NAME.")] = None,
    top: Annotated[int, typer.Option("--top", min=1, max=200, help="Maximum number of tasks.")] = 5,
    operators: Annotated[
        int, typer.Option("--operators", min=1, help="Maximum operators of a task; larger parts are split.")
    ] = 32,
    read: Annotated[
        list[Path] | None, typer.Option("--read", metavar="PATH", help="Path that the model's code may also read.")
    ] = None,
    timeout: Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="Maximum time.")] = 600.0,
    as_json: JsonArg = False,
    debug: DebugArg = False,
) -> int:
    """Run your whole model, see where its time goes, and get its hot parts as task files for optimize."""
    from cuda_agent.release.extract.extract import extract as take_apart
    from cuda_agent.release.extract.specs import whole_model_source

    whole = whole_model_source(model, inputs or (), init or (), cwd=Path.cwd())
    missing = next((path for path in read or () if not path.exists()), None)
    if missing is not None:
        raise UsageError(f"--read {missing}: no such file or folder", "Give one that exists")
    folder = out if out is not None else Path("extracted") / whole.name
    with ProgressView(whole.name) as view:
        extraction, note = take_apart(
            whole, folder, model=model, device=options.device, level=resolve_level(options.sandbox),
            top=top, operators=operators, readable=[path.resolve() for path in read or ()], timeout_s=timeout, say=view,
        )  # fmt: skip
    if not as_json:
        show(extraction_view(extraction, note))
    check_parts(extraction, folder)
    if as_json:
        emit(extraction.to_json())
    say(f"next: cuda-agent optimize {folder / 'tasks'} --out {folder / 'runs'}")
    say(f"then: cuda-agent apply {folder} {folder / 'runs'}")
    return EXIT_OK


@with_settings(JudgeOptions, only=("device", "precision", "timing_budget_s", "sandbox"))
def apply(
    options: JudgeOptions,
    extracted: Annotated[Path, typer.Argument(metavar="EXTRACTED", help="The folder that extract wrote.")],
    runs: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Run directories of its tasks, or their folder.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for whole_model.json; by default EXTRACTED.")
    ] = None,
    anyway: Annotated[bool, typer.Option("--anyway", help="Put in place what isn't faster alone, too.")] = False,
    no_compile: Annotated[
        bool, typer.Option("--no-compile", help="Don't compile the original for comparison.")
    ] = False,
) -> CommandAnswer:
    """Run the whole model with its optimized parts beside the original, and compare outputs and times.

    The exit code is 9 if the outputs don't agree or nothing could be timed, and 15 if no part is faster."""
    from cuda_agent.release.extract.apply import apply as judged
    from cuda_agent.release.extract.apply import optimized
    from cuda_agent.release.extract.extract import read_extraction

    extraction = read_extraction(extracted)
    parts, notes = optimized(extraction, runs, anyway=anyway)
    with ProgressView(extraction.name) as view:
        record = judged(extraction, parts, options, notes=notes, compiled=not no_compile, say=view)
    return put_together(record, [out or extracted, *(part.run for part in parts)])
