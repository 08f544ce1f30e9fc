"""cuda-agent export"""

from pathlib import Path
from typing import Annotated

import typer

from cuda_agent.cli.support.output import CommandAnswer, answers
from cuda_agent.core.errors import UsageError
from cuda_agent.core.extraction import Extraction
from cuda_agent.release.export import export as exporting
from cuda_agent.release.export.parts import export_parts


@answers
def export(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="A run directory, an entry of a registry, or the folder of optimize --parts."
        ),
    ],
    kind: Annotated[exporting.ExportKind, typer.Option("--as", help="Kind of project.")],
    name: Annotated[str | None, typer.Option("--name", help="Name of the Python package; default: the task's.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="New folder; by default exports/NAME.")
    ] = None,
    anyway: Annotated[bool, typer.Option("--anyway", help="Export what isn't faster than the original, too.")] = False,
) -> CommandAnswer:
    """Write the best candidate as a project that doesn't need cuda-agent. The task runs once, in the sandbox."""
    if (run / Extraction.file_name).is_file():
        return _by_parts(run, kind, name, out, anyway)
    made = exporting.export(run, kind, name=name, out=out, anyway=anyway)
    document = {"directory": str(made.folder), "as": kind.value, "verified": made.verified.model_dump(mode="json")}
    shown = [f"{made.verified.task}: exported to {made.folder}; see its README.md"]
    return CommandAnswer({"schema_version": 1, **document}, shown)


def _by_parts(
    folder: Path, kind: exporting.ExportKind, name: str | None, out: Path | None, anyway: bool
) -> CommandAnswer:
    if kind is not exporting.ExportKind.PACKAGE:
        raise UsageError(
            f"A model by parts can't be exported as {kind.value}", "Use --as package, or export the run of one part"
        )
    target, record = export_parts(folder, name=name, out=out, anyway=anyway)
    document = {"directory": str(target), "as": kind.value, "parts": record.model_dump(mode="json")}
    return CommandAnswer(
        {"schema_version": 1, **document}, [f"{record.model}: exported to {target}; see its README.md"]
    )
