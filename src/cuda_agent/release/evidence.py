"""The registry of promoted kernels: evidence that is named by its digest. Entries are revoked but never deleted.

entries/DIGEST/       the evidence of a promotion, and manifest.json: path -> SHA-256. DIGEST is that of the manifest
history.jsonl         what was promoted, refused and revoked, when and why; it only grows
regressions/          see `regressions`
"""

import hashlib
import hmac
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from cuda_agent.core.errors import CudaAgentError, StoreError, UsageError
from cuda_agent.core.files import write_folder
from cuda_agent.core.hashing import digest_files
from cuda_agent.core.lines import append, read_lines
from cuda_agent.core.record import Record, now
from cuda_agent.release.lock import StackLock, one_line
from cuda_agent.release.records import Promotion

MANIFEST = "manifest.json"
SIGNATURE = "signature.json"
LOCK = StackLock.file_name
CANDIDATE = "candidate"
_HISTORY = "history.jsonl"

KindOfEvent = Literal["promoted", "refused", "revoked"]


class Event(Record):
    """A line of the history. `entry` is None for a refusal."""

    event: KindOfEvent
    when: str
    task: str
    candidate_digest: str
    reason: str
    entry: str | None = None


class RegistryEntry(Record):
    """An entry of the registry. `revoked` says when and why it was revoked."""

    digest: str
    promotion: Promotion | None
    revoked: Event | None = None

    @property
    def stands(self) -> bool:
        return self.revoked is None


def add(registry: Path, files: Mapping[str, str], promotion: Promotion, key: bytes | None = None) -> str:
    """Writes an entry, whole or not at all, adds it to the history and returns its digest. Raises StoreError."""
    files = {**files, Promotion.file_name: promotion.to_json()}
    manifest = json.dumps({name: _sha256(text.encode()) for name, text in sorted(files.items())}, indent=1) + "\n"
    digest = _sha256(manifest.encode())
    if key is not None:
        files[SIGNATURE] = json.dumps({"hmac-sha256": _signed(key, digest)}) + "\n"
    target = registry / "entries" / digest
    if not target.exists():
        write_folder(target, {**files, MANIFEST: manifest}, "Free some space, or choose a registry that can be written")
    note(registry, "promoted", promotion, "every gate passed", digest)
    return digest


def note(
    registry: Path, event: KindOfEvent, promotion: Promotion | None, reason: str, entry: str | None = None
) -> Event:
    """Adds a line to the history. Raises StoreError."""
    task, candidate = (promotion.task, promotion.candidate_digest) if promotion is not None else ("?", "?")
    found = Event(event=event, when=now(), task=task, candidate_digest=candidate, reason=reason[:2000], entry=entry)
    append(registry / _HISTORY, [found])
    return found


def history(registry: Path) -> tuple[Event, ...]:
    """Returns the events in order. Raises StoreError for a damaged line, which may be a revocation."""
    return tuple(read_lines(registry / _HISTORY, Event, optional=True))


def entries(registry: Path) -> tuple[RegistryEntry, ...]:
    """Returns all entries, the newest first, also those whose folder is gone. Raises UsageError, StoreError."""
    if not registry.is_dir():
        raise UsageError(f"There is no registry {registry}", "cuda-agent promote makes one; or pass --registry")
    events = [event for event in history(registry) if event.entry is not None]
    revoked = {event.entry: event for event in events if event.event == "revoked"}
    folders = (registry / "entries").glob("[!.]*") if (registry / "entries").is_dir() else ()
    # An entry that a kill left without its line in the history is valid too.
    digests = dict.fromkeys([*(event.entry or "" for event in events), *(path.name for path in folders)])
    found = [
        RegistryEntry(digest=name, promotion=_promotion(registry, name), revoked=revoked.get(name)) for name in digests
    ]
    return tuple(sorted(found, key=lambda e: e.promotion.started if e.promotion else "", reverse=True))


def _promotion(registry: Path, digest: str) -> Promotion | None:
    try:
        return Promotion.read(registry / "entries" / digest)
    except StoreError:
        return None


def fault(registry: Path, entry: RegistryEntry, here: StackLock | None = None, key: bytes | None = None) -> str:
    """Returns why an entry isn't valid any more, "" where it is: its evidence changed since it was promoted; the stack
    `here` isn't the entry's; or its signature isn't of the key."""
    folder = registry / "entries" / entry.digest
    try:
        changed = _changed(folder, entry.digest)
        if changed:
            return changed
        differences = () if here is None else StackLock.load(folder / LOCK).differences(here)
        if differences:
            return f"the stack changed: {'; '.join(map(str, differences))}"
        return "" if key is None else _signature_fault(folder, entry.digest, key)
    except FileNotFoundError:
        return f"the evidence is gone: {folder} holds no {MANIFEST}"
    except (OSError, ValueError, TypeError, AttributeError, CudaAgentError) as error:
        return f"the evidence can't be read: {one_line(error)}"


def _changed(folder: Path, digest: str) -> str:
    manifest = (folder / MANIFEST).read_bytes()
    names: dict[str, str] = json.loads(manifest)
    if _sha256(manifest) != digest:
        return "the manifest isn't the one that was promoted"
    present = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    for name in sorted(present.symmetric_difference({*names, MANIFEST}) - {SIGNATURE}):
        return f"{name} is {'missing' if name in names else 'not part of the evidence'}"
    for name, wanted in names.items():
        if _sha256((folder / name).read_bytes()) != wanted:
            return f"{name} was changed"
    files = {name: (folder / name).read_text() for name in names if name.startswith(f"{CANDIDATE}/")}
    candidate = digest_files({name.partition("/")[2]: text for name, text in files.items()})
    promotion = Promotion.read(folder)
    if promotion.candidate_digest != candidate or not promotion.passed:
        return "the gates weren't those of this candidate"
    return ""


def revoke(registry: Path, entry: RegistryEntry, reason: str) -> RegistryEntry:
    """Revokes an entry and returns it; its evidence stays. Raises StoreError."""
    return entry.model_copy(update={"revoked": note(registry, "revoked", entry.promotion, reason, entry.digest)})


def read_key(path: Path) -> bytes:
    """Reads the secret that signs entries. Raises UsageError where it can't be read or is too short."""
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise UsageError(f"Can't read the key {path}: {error.strerror}", "Check the path") from None
    if len(key) < 16:
        raise UsageError(f"The key in {path} is shorter than 16 bytes", "openssl rand -hex 32 makes one")
    return key


def _signature_fault(folder: Path, digest: str, key: bytes) -> str:
    if not (folder / SIGNATURE).is_file():
        return "it isn't signed"
    said = json.loads((folder / SIGNATURE).read_text()).get("hmac-sha256", "")
    return "" if hmac.compare_digest(str(said), _signed(key, digest)) else "the signature is not of this key"


def _signed(key: bytes, digest: str) -> str:
    return hmac.new(key, digest.encode(), hashlib.sha256).hexdigest()


def _sha256(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()
