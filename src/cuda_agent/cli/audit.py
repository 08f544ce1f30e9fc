"""cuda-agent audit"""

from __future__ import annotations

import getpass
import json
import shlex
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from cuda_agent.cli.support.options import DebugArg, JsonArg
from cuda_agent.cli.support.output import emit, show
from cuda_agent.core.bench import Audit
from cuda_agent.core.errors import EXIT_OK, UsageError
from cuda_agent.report.audit import ToCheck, record, to_check
from cuda_agent.report.load import Recorded, load
from cuda_agent.report.plain import plain


class WordOption(StrEnum):
    """What a person says of a task."""

    SOUND = "sound"
    DOUBTFUL = "doubtful"
    CHEATING = "cheating"


def command(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="What bench or optimize left.")],
    task: Annotated[str | None, typer.Option("--task", help="The task that the verdict is on.")] = None,
    verdict: Annotated[WordOption | None, typer.Option("--verdict", help="Your word on it.")] = None,
    note: Annotated[str, typer.Option("--note", help="Why.")] = "",
    by: Annotated[str | None, typer.Option("--by", help="Who says so; by default the user's name.")] = None,
    as_json: JsonArg = False,
    debug: DebugArg = False,
) -> int:
    """List what a person should look at (large or strange wins, a random sample), or record their word on a task."""
    run = load(directory)
    if (task is None) != (verdict is None):
        missing, given = ("--verdict", "--task") if verdict is None else ("--task", "--verdict")
        raise UsageError(f"{given} without {missing}", "Give both, or neither for the list")
    if task is not None and verdict is not None:
        said = record(directory, run.rows, run.audits, task, verdict.value, note, _user() if by is None else by)
        _print_word(said, as_json=as_json)
        return EXIT_OK
    checks = to_check(run.rows, run.limits, run.audits)
    if as_json:
        emit(json.dumps({"schema_version": 1, "tasks": [_fact(item) for item in checks]}))
    else:
        show(*_view(run, checks, directory))
    return EXIT_OK


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""


def _print_word(said: Audit, *, as_json: bool) -> None:
    if as_json:
        emit(json.dumps({"schema_version": 1, "audit": said.model_dump(mode="json")}))
    else:
        show(Text(f"{plain(said.task)}: {said.verdict}"))


def _fact(item: ToCheck) -> dict[str, object]:
    word = item.audit.model_dump(mode="json") if item.audit is not None else None
    return {"task": item.row.task.id, "reasons": item.reasons, "suspicious": item.suspicious, "audit": word}


def _view(run: Recorded, checks: tuple[ToCheck, ...], directory: Path) -> list[RenderableType]:
    if not checks:
        return [Text("Nothing passed, so there is nothing to look at.")]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in ("task", "why", "word so far"):
        table.add_column(header, overflow="fold")
    for item in checks:
        said = item.audit
        word = (
            f"{said.verdict}{f' ({said.by})' if said.by else ''}{f': {said.note}' if said.note else ''}"
            if said
            else "—"
        )
        style = "yellow" if item.suspicious else ""
        table.add_row(
            Text(plain(item.row.task.id)), Text(plain("; ".join(item.reasons)), style=style), Text(plain(word))
        )
    hint = f"cuda-agent audit {shlex.quote(str(directory))} --task TASK --verdict sound|doubtful|cheating --note …"
    return [*(Text(note) for note in run.notes), table, Text(f"Look at the code in the report, then: {hint}")]
