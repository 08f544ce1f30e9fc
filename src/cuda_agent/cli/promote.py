"""cuda-agent promote, cuda-agent promoted"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from cuda_agent.cli.support.output import CommandAnswer, ProgressView, answers
from cuda_agent.core.errors import EXIT_NOT_PASSED, EXIT_OK, CudaAgentError, UsageError
from cuda_agent.core.extraction import WholeModel
from cuda_agent.core.files import check_writable, write_durably
from cuda_agent.core.plain import plain
from cuda_agent.core.records import Candidate
from cuda_agent.release import evidence, render
from cuda_agent.release.evidence import RegistryEntry
from cuda_agent.release.gate import GateOptions, load_gate
from cuda_agent.release.lock import StackLock, read_lock
from cuda_agent.release.records import Promotion
from cuda_agent.release.subject import Subject, load_subject, rival
from cuda_agent.report.tables.columns import plain_table

if TYPE_CHECKING:
    from cuda_agent.release.promote import Examined

STYLES = {"passed": "green", "failed": "bold red", "skipped": "dim", "not_applicable": "dim"}

RegistryArg = Annotated[Path, typer.Option("--registry", help="Folder of what was promoted, and of failed inputs.")]
KeyArg = Annotated[
    Path | None, typer.Option("--sign-key", metavar="FILE", help="Secret that signs the evidence (HMAC-SHA256).")
]


@answers
def promote(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, or a workspace.")],
    gate: Annotated[
        Path | None, typer.Option("--gate", metavar="FILE", help="The gate's settings; without it the defaults.")
    ] = None,
    registry: RegistryArg = Path("promoted"),
    junit: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML.")] = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write an HTML page.")] = None,
    sign_key: KeyArg = None,
) -> CommandAnswer:
    """Examine a run's best candidate at the gate, and keep the evidence if it passes. The exit code is 9 if not."""
    from cuda_agent.release.promote import promote as examine

    try:
        for file in filter(None, (junit, html)):
            if file.is_dir():
                raise UsageError(f"{file} is a folder", "Give a file")
            check_writable(file)
        options = load_gate(gate)
        key = None if sign_key is None else evidence.read_key(sign_key)
        subject = load_subject(directory)
        if options.lock is not None and not options.lock.exists():
            remedy = "Make one where it should hold: cuda-agent lock. Or write `lock: null` into the gate"
            raise UsageError(f"There is no lock {options.lock}", remedy)
        rivals = {name: rival(name, path, subject) for name, path in options.speed.kernels.items()}
        lock = read_lock()
        with ProgressView(subject.task.name) as view:
            examined = examine(subject, options, rivals, registry, view)
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
    ending = f"promoted: {registry / 'entries' / promotion.entry}" if promotion.entry else "not promoted"
    return CommandAnswer(
        {**promotion.model_dump(mode="json"), "passed": promotion.passed},
        [_gate_table(promotion), ending],
        code=EXIT_OK if promotion.passed else EXIT_NOT_PASSED,
    )


def _concluded(
    subject: Subject,
    options: GateOptions,
    rivals: Mapping[str, Candidate],
    lock: StackLock,
    registry: Path,
    examined: "Examined",
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


def _gate_table(promotion: Promotion) -> Table:
    headers = ("gate", "result", "reason")
    table = plain_table(*headers, left=headers, wrap=headers, title=plain(promotion.task))
    for gate in promotion.gates:
        status = Text(gate.status.replace("_", " "), style=STYLES[gate.status])
        table.add_row(gate.name.replace("_", " "), status, Text(plain(gate.reason)))
    return table


@answers
def promoted(
    registry: RegistryArg = Path("promoted"),
    check: Annotated[
        bool, typer.Option("--check", help="Check evidence and stack again; revoke what no longer holds.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --check: revoke nothing, only print it.")] = False,
    sign_key: KeyArg = None,
) -> CommandAnswer:
    """List what was promoted. The exit code is 9 if evidence was changed, or with --check if the stack is another."""
    if dry_run and not check:
        raise UsageError("--dry-run says what --check would revoke", "Pass both")
    if sign_key is not None and not check:
        raise UsageError("--sign-key is for --check", "Pass both")
    found = evidence.entries(registry)
    here, key = read_lock() if check else None, None if sign_key is None else evidence.read_key(sign_key)
    checked = {entry.digest: evidence.fault(registry, entry, here, key) for entry in found if entry.stands}
    faults = {digest: fault for digest, fault in checked.items() if fault}
    # Of what was revoked, too, nothing is shown that isn't as it was.
    changed = {entry.digest for entry in found if not entry.stands and evidence.fault(registry, entry)} | set(faults)
    if check and not dry_run:
        found = tuple(
            evidence.revoke(registry, entry, faults[entry.digest]) if entry.digest in faults else entry
            for entry in found
        )
    what = "would be revoked" if dry_run else "is revoked" if check else "doesn't hold, --check revokes it"
    return CommandAnswer(
        {"schema_version": 1, "entries": [_document(entry, faults, changed) for entry in found]},
        [_entry_table(found, faults, changed) if found else Text("nothing was promoted")],
        [f"{digest[:12]} {what}: {plain(fault)}" for digest, fault in faults.items()],
        code=EXIT_NOT_PASSED if faults else EXIT_OK,
    )


def _document(entry: RegistryEntry, faults: dict[str, str], changed: set[str]) -> dict[str, object]:
    document = {"entry": entry.digest, "stands": entry.stands, "fault": faults.get(entry.digest)}
    document["revoked"] = None if entry.revoked is None else entry.revoked.model_dump(mode="json")
    shown = None if entry.digest in changed else entry.promotion
    document["promotion"] = None if shown is None else shown.model_dump(mode="json")
    return document


def _entry_table(found: tuple[RegistryEntry, ...], faults: dict[str, str], changed: set[str]) -> Table:
    headers = ("entry", "task", "since", "speed", "state")
    table = plain_table(*headers, left=headers, wrap=headers)
    for entry in found:
        promotion = entry.promotion
        speed = next((g.reason for g in promotion.gates if g.name == "speed"), "") if promotion else ""
        state = Text("stands", style="green")
        if entry.revoked is not None:
            state = Text(f"revoked {entry.revoked.when}: {plain(entry.revoked.reason)}", style="red")
        elif entry.digest in faults:
            state = Text(f"doesn't hold: {plain(faults[entry.digest])}", style="red")
        if entry.digest in changed:
            # Nothing of it can be believed, its numbers neither.
            speed = ""
        task, since = (plain(promotion.task), promotion.started) if promotion else ("?", "?")
        table.add_row(entry.digest[:12], task, since, plain(speed.removeprefix("at worst ")), state)
    return table
