"""cuda-agent report, cuda-agent audit"""

import getpass
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from cuda_agent.cli.support.output import CommandAnswer, answers
from cuda_agent.core.bench import AuditVerdict, Metrics
from cuda_agent.core.errors import UsageError
from cuda_agent.core.files import write_durably
from cuda_agent.core.plain import plain
from cuda_agent.report.audit import ToCheck, record, to_check
from cuda_agent.report.load import Recorded, load
from cuda_agent.report.tables.columns import plain_table

FILE_NAME = "report.html"


@answers
def report(
    directory: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run of bench, optimize or train, or a folder of runs.")
    ],
    out: Annotated[Path | None, typer.Option("--out", help="The file; by default RUN/report.html.")] = None,
) -> CommandAnswer:
    """Write a run as one HTML page that needs no network: tables, charts, code, samples, transcripts."""
    from cuda_agent.report.page import render

    target = out if out is not None else directory / FILE_NAME
    if target.is_dir():
        raise UsageError(f"{target} is a folder", "Give --out a file, such as report.html")
    run = load(directory)
    page = render(run, run.metrics or _metrics(run), str(directory))
    write_durably(target, page.html)
    size = len(page.html.encode())
    facts = {"file": str(target), "bytes": size, "kind": run.kind, "tasks": len(run.rows)}
    facts |= {"to_check": page.to_check, "unspoken": page.unchecked, "notes": list(run.notes)}
    lines = [*run.notes, f"{target}  ({size / 1e6:.1f} MB, {_count(len(run.rows))})"]
    if page.unchecked:
        audit_it = f"cuda-agent audit {shlex.quote(str(directory))}"
        lines.append(f"Without a person's word: {_count(page.unchecked)}; {audit_it}")
    return CommandAnswer({"schema_version": 1, **facts}, map(Text, lines))


def _count(tasks: int) -> str:
    return f"{tasks} task" if tasks == 1 else f"{tasks} tasks"


def _metrics(run: Recorded) -> Metrics:
    from cuda_agent.bench.metrics import metrics_of

    ended = [result for result in run.results if result.outcome != "unfinished"]
    return metrics_of(ended, tasks=len(run.rows))


@answers
def audit(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="A run of bench or optimize.")],
    task: Annotated[str | None, typer.Option("--task", help="Task that the verdict is about.")] = None,
    verdict: Annotated[AuditVerdict | None, typer.Option("--verdict", help="Your verdict on the task.")] = None,
    note: Annotated[str, typer.Option("--note", help="Reason for the verdict.")] = "",
    by: Annotated[str | None, typer.Option("--by", help="Name of the judging person; by default the user's.")] = None,
) -> CommandAnswer:
    """List results that a person should check (large or strange wins, a random sample), or record a verdict on one."""
    run = load(directory)
    if (task is None) != (verdict is None):
        missing, given = ("--verdict", "--task") if verdict is None else ("--task", "--verdict")
        raise UsageError(f"{given} without {missing}", "Give both, or neither for the list")
    if task is not None and verdict is not None:
        said = record(directory, run.rows, run.audits, task, verdict, note, _user() if by is None else by)
        document = {"schema_version": 1, "audit": said.model_dump(mode="json")}
        return CommandAnswer(document, [Text(f"{plain(said.task)}: {said.verdict}")])
    checks = to_check(run.rows, run.limits, run.audits)
    return CommandAnswer(
        {"schema_version": 1, "tasks": [_fact(item) for item in checks]}, _view(run.notes, checks, directory)
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""


def _fact(item: ToCheck) -> dict[str, object]:
    word = item.audit.model_dump(mode="json") if item.audit is not None else None
    return {"task": item.row.task.id, "reasons": item.reasons, "suspicious": item.suspicious, "audit": word}


def _view(notes: Sequence[str], checks: Sequence[ToCheck], directory: Path) -> list[RenderableType]:
    if not checks:
        return [Text("Nothing passed, so there is nothing to look at.")]
    headers = ("task", "why", "word so far")
    table = plain_table(*headers, left=headers, wrap=headers)
    for item in checks:
        said, word = item.audit, "—"
        if said is not None:
            word = f"{said.verdict}{f' ({said.by})' if said.by else ''}{f': {said.note}' if said.note else ''}"
        style = "yellow" if item.suspicious else ""
        table.add_row(
            Text(plain(item.row.task.id)), Text(plain("; ".join(item.reasons)), style=style), Text(plain(word))
        )
    hint = f"cuda-agent audit {shlex.quote(str(directory))} --task TASK --verdict sound|doubtful|cheating --note …"
    return [*map(Text, notes), table, Text(f"Look at the code in the report, then: {hint}")]
