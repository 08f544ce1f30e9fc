"""cuda-agent promote"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from cuda_agent.cli.support.options import DebugArg, JsonArg
from cuda_agent.cli.support.output import ProgressView, emit, show
from cuda_agent.core.errors import EXIT_NOT_PASSED, EXIT_OK, CudaAgentError, StoreError, UsageError
from cuda_agent.core.extraction import WholeModel
from cuda_agent.core.files import write_durably
from cuda_agent.core.records import Candidate
from cuda_agent.release import evidence, render
from cuda_agent.release.gate import GateOptions, load_gate
from cuda_agent.release.lock import StackLock, read_lock
from cuda_agent.release.records import Promotion
from cuda_agent.release.subject import Subject, load_subject, rival
from cuda_agent.report.plain import plain

if TYPE_CHECKING:
    from cuda_agent.release.promote import Examined

STYLES = {"passed": "green", "failed": "bold red", "skipped": "dim", "not_applicable": "dim"}

RegistryArg = Annotated[Path, typer.Option("--registry", help="Folder of what was promoted, and of what ever failed.")]
KeyArg = Annotated[
    Path | None, typer.Option("--sign-key", metavar="FILE", help="Secret that signs the evidence (HMAC-SHA256).")
]


def command(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, or a workspace.")],
    gate: Annotated[
        Path | None, typer.Option("--gate", metavar="FILE", help="gate.yaml; without it the defaults.")
    ] = None,
    registry: RegistryArg = Path("promoted"),
    junit: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit's XML.")] = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write an HTML page.")] = None,
    sign_key: KeyArg = None,
    as_json: JsonArg = False,
    debug: DebugArg = False,
) -> int:
    """Put the best candidate of a run before the gate, and keep the evidence where it passes. Exit code 9 where not."""
    from cuda_agent.release.promote import promote

    try:
        _check_writable(junit, html)
        options = load_gate(gate)
        key = None if sign_key is None else evidence.read_key(sign_key)
        subject = load_subject(directory)
        if options.lock is not None and not options.lock.exists():
            remedy = "Make one where it should hold: cuda-agent lock. Or write `lock: null` into the gate"
            raise UsageError(f"There is no lock {options.lock}", remedy)
        rivals = {name: rival(name, path, subject) for name, path in options.speed.kernels.items()}
        lock = read_lock()
        with ProgressView(subject.task.name) as view:
            examined = promote(subject, options, rivals, registry, view)
        promotion = _concluded(subject, options, rivals, lock, registry, examined, key)
    except CudaAgentError as error:
        # Where it can't be written, that is the error.
        if junit is not None and not junit.is_dir():
            write_durably(junit, render.junit_error(directory.name, str(error)))
        raise
    if junit is not None:
        write_durably(junit, render.junit(promotion))
    if html is not None:
        write_durably(html, render.html(promotion, lock))
    if as_json:
        emit(json.dumps({**promotion.model_dump(mode="json"), "passed": promotion.passed}, indent=1))
    else:
        show(_table(promotion))
        emit(f"promoted: {registry / 'entries' / promotion.entry}" if promotion.entry else "not promoted")
    return EXIT_OK if promotion.passed else EXIT_NOT_PASSED


def _check_writable(*files: Path | None) -> None:
    """Before the gates take their time. Raises UsageError, StoreError."""
    for file in files:
        if file is None:
            continue
        if file.is_dir():
            raise UsageError(f"{file} is a folder", "Give a file")
        above = next(parent for parent in file.absolute().parents if parent.exists())
        if not os.access(above, os.W_OK):
            raise StoreError(f"{file} can't be written", "Choose a folder that can be written")


def _concluded(
    subject: Subject,
    options: GateOptions,
    rivals: Mapping[str, Candidate],
    lock: StackLock,
    registry: Path,
    examined: Examined,
    key: bytes | None,
) -> Promotion:
    """With its entry in the registry where it passed; else the refusal in its history."""
    promotion = examined.promotion
    first = promotion.first_failure
    if first is not None or not promotion.passed:
        reason = "a gate was skipped" if first is None else f"{first.name}: {first.reason}"
        evidence.note(registry, "refused", promotion, reason)
        return promotion
    files = {
        "task.json": subject.task.to_json(),
        "gate.json": options.model_dump_json(indent=1),
        evidence.LOCK: lock.to_yaml(),
        "report.html": render.html(promotion, lock),
        **{f"{evidence.CANDIDATE}/{name}": text for name, text in subject.candidate.files.items()},
        **{f"evaluations/{name}.json": found.to_json() for name, found in examined.evaluations.items()},
    }
    if examined.whole_model is not None:
        files[WholeModel.file_name] = examined.whole_model.to_json()
    for name, other in rivals.items():
        files |= {f"kernels/{name}/{path}": text for path, text in other.files.items()}
    return promotion.model_copy(update={"entry": evidence.add(registry, files, promotion, key)})


def _table(promotion: Promotion) -> Table:
    table = Table(box=None, pad_edge=False, title=plain(promotion.task), title_justify="left")
    for column in ("gate", "result", "reason"):
        table.add_column(column, overflow="fold")
    for gate in promotion.gates:
        status = Text(gate.status.replace("_", " "), style=STYLES[gate.status])
        table.add_row(gate.name.replace("_", " "), status, Text(plain(gate.reason)))
    return table
