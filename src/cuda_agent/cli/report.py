"""cuda-agent report"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from cuda_agent.cli.support.options import DebugArg, JsonArg
from cuda_agent.cli.support.output import emit, show
from cuda_agent.core.bench import Metrics
from cuda_agent.core.errors import EXIT_OK, UsageError
from cuda_agent.core.files import write_durably
from cuda_agent.report.load import Recorded, load

FILE_NAME = "report.html"


def command(
    directory: Annotated[
        Path, typer.Argument(metavar="RUN", help="What bench, optimize or train left, or a folder of runs.")
    ],
    out: Annotated[Path | None, typer.Option("--out", help="The file; by default RUN/report.html.")] = None,
    as_json: JsonArg = False,
    debug: DebugArg = False,
) -> int:
    """Write a run as one HTML page that needs no network: tables, charts, code, samples, transcripts."""
    from cuda_agent.report.page import render

    target = out if out is not None else directory / FILE_NAME
    if target.is_dir():
        raise UsageError(f"{target} is a folder", "Give --out a file, such as report.html")
    run = load(directory)
    page = render(run, run.metrics or _metrics(run), str(directory))
    write_durably(target, page.html)
    size = len(page.html.encode())
    if as_json:
        facts = {"file": str(target), "bytes": size, "kind": run.kind, "tasks": len(run.rows)}
        facts |= {"to_check": page.to_check, "unspoken": page.unchecked, "notes": list(run.notes)}
        emit(json.dumps({"schema_version": 1, **facts}))
        return EXIT_OK
    show(*(Text(note) for note in run.notes), Text(f"{target}  ({size / 1e6:.1f} MB, {_count(len(run.rows))})"))
    if page.unchecked:
        show(Text(f"Without a person's word: {_count(page.unchecked)}; cuda-agent audit {shlex.quote(str(directory))}"))
    return EXIT_OK


def _count(tasks: int) -> str:
    return f"{tasks} task" if tasks == 1 else f"{tasks} tasks"


def _metrics(run: Recorded) -> Metrics:
    """Returns the metrics of the tasks that have ended."""
    from cuda_agent.bench.metrics import metrics_of

    ended = [result for result in run.results if result.outcome != "unfinished"]
    return metrics_of(ended, tasks=len(run.rows))
