"""The registry of what was promoted: evidence named by its digest, revoked but never deleted.

entries/DIGEST/       everything that the promotion rests on, and manifest.json: path -> SHA-256; DIGEST is its own
history.jsonl         what was promoted, refused and revoked, when and why; it only grows
regressions/          see `regressions`
"""

from __future__ import annotations

import hashlib
import hmac
import json
import shutil
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from cuda_agent.core.errors import CudaAgentError, StoreError, UsageError
from cuda_agent.core.files import append_lines, write_durably
from cuda_agent.core.hashing import digest_files
from cuda_agent.core.record import Record
from cuda_agent.release.lock import StackLock
from cuda_agent.release.records import Promotion

MANIFEST = "manifest.json"
SIGNATURE = "signature.json"
LOCK = StackLock.file_name
CANDIDATE = "candidate"
_HISTORY = "history.jsonl"


class Event(Record):
    """A line of the history. `entry` is None where something was refused."""

    event: Literal["promoted", "refused", "revoked"]
    when: str
    task: str
    candidate_digest: str
    reason: str
    entry: str | None = None


class Entry(Record):
    """An entry and how it stands; `revoked`: since when and why it doesn't."""

    digest: str
    promotion: Promotion | None
    revoked: Event | None = None

    @property
    def stands(self) -> bool:
        return self.revoked is None


def add(registry: Path, files: Mapping[str, str], promotion: Promotion, key: bytes | None = None) -> str:
    """Writes an entry, whole or not at all, and says so in the history; its digest. Raises StoreError."""
    files = {**files, Promotion.file_name: promotion.to_json()}
    manifest = json.dumps({name: _sha256(text.encode()) for name, text in sorted(files.items())}, indent=1) + "\n"
    digest = _sha256(manifest.encode())
    entries = registry / "entries"
    try:
        entries.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".new-", dir=entries))
    except OSError as error:
        raise StoreError(f"Can't write {entries}: {error.strerror}", "Choose a registry that can be written") from None
    try:
        for name, text in files.items():
            write_durably(folder / name, text)
        if key is not None:
            write_durably(folder / SIGNATURE, json.dumps({"hmac-sha256": _signed(key, digest)}) + "\n")
        write_durably(folder / MANIFEST, manifest)
        folder.chmod(0o755)
        if not (entries / digest).exists():
            folder.rename(entries / digest)
    except OSError as error:
        raise StoreError(f"Can't write {entries / digest}: {error.strerror}", "Free some space") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    note(registry, "promoted", promotion, "every gate passed", digest)
    return digest


def note(
    registry: Path,
    event: Literal["promoted", "refused", "revoked"],
    promotion: Promotion,
    reason: str,
    entry: str | None = None,
) -> Event:
    """A line in the history. Raises StoreError."""
    when = datetime.now(UTC).isoformat(timespec="seconds")
    found = Event(
        event=event, when=when, task=promotion.task, candidate_digest=promotion.candidate_digest,
        reason=reason[:2000], entry=entry,
    )  # fmt: skip
    append_lines(registry / _HISTORY, [found.model_dump_json()])
    return found


def history(registry: Path) -> tuple[Event, ...]:
    """In order; a last line that a kill cut short is none. Raises StoreError: a damaged line may have revoked."""
    path = registry / _HISTORY
    try:
        text = path.read_text()
        lines = text.splitlines()
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"Can't read {path}: {error}", "Check the registry") from None
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(Event.model_validate_json(line))
        except ValidationError:
            if number < len(lines) or text.endswith("\n"):
                raise StoreError(f"{path}, line {number} is no event", "Restore it") from None
    return tuple(found)


def entries(registry: Path) -> tuple[Entry, ...]:
    """All that were ever promoted, the newest first; also those whose folder is gone. Raises UsageError, StoreError."""
    if not registry.is_dir():
        raise UsageError(f"There is no registry {registry}", "cuda-agent promote makes one; or pass --registry")
    events = [event for event in history(registry) if event.entry is not None]
    revoked = {event.entry: event for event in events if event.event == "revoked"}
    folders = (registry / "entries").glob("[!.]*") if (registry / "entries").is_dir() else ()
    # One that a kill left without its line stands too.
    digests = dict.fromkeys([*(event.entry or "" for event in events), *(path.name for path in folders)])
    found = [Entry(digest=name, promotion=_promotion(registry, name), revoked=revoked.get(name)) for name in digests]
    return tuple(sorted(found, key=lambda e: e.promotion.started if e.promotion else "", reverse=True))


def _promotion(registry: Path, digest: str) -> Promotion | None:
    try:
        return Promotion.read(registry / "entries" / digest)
    except StoreError:
        return None


def check(registry: Path, entry: Entry, here: StackLock, key: bytes | None = None) -> str:
    """Why an entry doesn't stand any more: its evidence isn't what was promoted, or the stack is another one; "" where
    it does."""
    changed = fault(registry, entry)
    if changed:
        return changed
    folder = registry / "entries" / entry.digest
    try:
        differences = StackLock.load(folder / LOCK).differences(here)
        if differences:
            return f"the stack changed: {'; '.join(map(str, differences))}"
        return _signature_fault(folder, entry.digest, key)
    except (OSError, ValueError, TypeError, AttributeError, CudaAgentError) as error:
        return f"the evidence can't be read: {' '.join(str(error).split())[:200]}"


def fault(registry: Path, entry: Entry) -> str:
    """What of an entry's evidence isn't as it was promoted; "" where all is."""
    folder = registry / "entries" / entry.digest
    try:
        manifest = (folder / MANIFEST).read_bytes()
        names: dict[str, str] = json.loads(manifest)
        if _sha256(manifest) != entry.digest:
            return "the manifest isn't the one that was promoted"
        present = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        for name in sorted(present.symmetric_difference({*names, MANIFEST}) - {SIGNATURE}):
            return f"{name} is {'missing' if name in names else 'not part of the evidence'}"
        for name, digest in names.items():
            if _sha256((folder / name).read_bytes()) != digest:
                return f"{name} was changed"
        files = {name: (folder / name).read_text() for name in names if name.startswith(f"{CANDIDATE}/")}
        candidate = digest_files({name.partition("/")[2]: text for name, text in files.items()})
        promotion = Promotion.read(folder)
        if promotion.candidate_digest != candidate or not promotion.passed:
            return "the gates weren't those of this candidate"
        return ""
    except FileNotFoundError:
        return f"the evidence is gone: {folder} holds no {MANIFEST}"
    except (OSError, ValueError, TypeError, AttributeError, CudaAgentError) as error:
        return f"the evidence can't be read: {' '.join(str(error).split())[:200]}"


def revoke(registry: Path, entry: Entry, reason: str) -> Entry:
    """The entry, from now on revoked; its evidence stays. Raises StoreError."""
    when = datetime.now(UTC).isoformat(timespec="seconds")
    task, candidate = (entry.promotion.task, entry.promotion.candidate_digest) if entry.promotion else ("?", "?")
    event = Event(
        event="revoked", when=when, task=task, candidate_digest=candidate, reason=reason[:2000], entry=entry.digest
    )
    append_lines(registry / _HISTORY, [event.model_dump_json()])
    return entry.model_copy(update={"revoked": event})


def read_key(path: Path) -> bytes:
    """The secret that signs. Raises UsageError."""
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise UsageError(f"Can't read the key {path}: {error.strerror}", "Check the path") from None
    if len(key) < 16:
        raise UsageError(f"The key in {path} is shorter than 16 bytes", "openssl rand -hex 32 makes one")
    return key


def _signature_fault(folder: Path, digest: str, key: bytes | None) -> str:
    if key is None:
        return ""
    if not (folder / SIGNATURE).is_file():
        return "it isn't signed"
    said = json.loads((folder / SIGNATURE).read_text()).get("hmac-sha256", "")
    return "" if hmac.compare_digest(str(said), _signed(key, digest)) else "the signature is not of this key"


def _signed(key: bytes, digest: str) -> str:
    return hmac.new(key, digest.encode(), hashlib.sha256).hexdigest()


def _sha256(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()
