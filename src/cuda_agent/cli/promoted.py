"""cuda-agent promoted"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from cuda_agent.cli.promote import KeyArg, RegistryArg
from cuda_agent.cli.support.options import DebugArg, JsonArg
from cuda_agent.cli.support.output import emit, say, show
from cuda_agent.core.errors import EXIT_NOT_PASSED, EXIT_OK, UsageError
from cuda_agent.release import evidence
from cuda_agent.release.evidence import RegistryEntry
from cuda_agent.release.lock import read_lock
from cuda_agent.report.plain import plain


def command(
    registry: RegistryArg = Path("promoted"),
    check: Annotated[
        bool, typer.Option("--check", help="Verify evidence and stack again; revoke what no longer holds.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --check: say it, revoke nothing.")] = False,
    sign_key: KeyArg = None,
    as_json: JsonArg = False,
    debug: DebugArg = False,
) -> int:
    """List what was promoted, and what of it stands. Exit code 9 where something no longer holds: evidence that was
    changed, and with --check another stack, too."""
    if dry_run and not check:
        raise UsageError("--dry-run says what --check would revoke", "Pass both")
    if sign_key is not None and not check:
        raise UsageError("--sign-key is for --check", "Pass both")
    found = evidence.entries(registry)
    standing = [entry for entry in found if entry.stands]
    if check:
        here, key = read_lock(), None if sign_key is None else evidence.read_key(sign_key)
        checked = {entry.digest: evidence.check(registry, entry, here, key) for entry in standing}
    else:
        checked = {entry.digest: evidence.fault(registry, entry) for entry in standing}
    faults = {digest: fault for digest, fault in checked.items() if fault}
    # Of what was revoked, too, nothing is shown that isn't as it was.
    changed = {entry.digest for entry in found if not entry.stands and evidence.fault(registry, entry)} | set(faults)
    if check and not dry_run:
        found = tuple(
            evidence.revoke(registry, entry, faults[entry.digest]) if entry.digest in faults else entry
            for entry in found
        )
    if as_json:
        emit(
            json.dumps(
                {"schema_version": 1, "entries": [_document(entry, faults, changed) for entry in found]}, indent=1
            )
        )
    else:
        show(_table(found, faults, changed) if found else Text("nothing was promoted"))
        for digest, fault in faults.items():
            what = "would be revoked" if dry_run else "is revoked" if check else "doesn't hold, --check revokes it"
            say(f"{digest[:12]} {what}: {plain(fault)}")
    return EXIT_NOT_PASSED if faults else EXIT_OK


def _document(entry: RegistryEntry, faults: dict[str, str], changed: set[str]) -> dict[str, object]:
    document = {"entry": entry.digest, "stands": entry.stands, "fault": faults.get(entry.digest)}
    document["revoked"] = None if entry.revoked is None else entry.revoked.model_dump(mode="json")
    shown = None if entry.digest in changed else entry.promotion
    document["promotion"] = None if shown is None else shown.model_dump(mode="json")
    return document


def _table(found: tuple[RegistryEntry, ...], faults: dict[str, str], changed: set[str]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("entry", "task", "since", "speed", "state"):
        table.add_column(column, overflow="fold")
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
