"""Stores files of a run by content: every candidate, and the workspace before the last tool."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from cuda_agent.core.errors import StoreError
from cuda_agent.core.files import write_durably
from cuda_agent.core.records import Candidate

FOLDER = "store"


class ContentStore:
    """`objects/<sha256>` holds the bytes of a file. `candidates/<digest>.json` lists the objects of a candidate."""

    def __init__(self, run_directory: Path) -> None:
        self._objects = run_directory / FOLDER / "objects"
        self._candidates = run_directory / FOLDER / "candidates"
        self._kept: set[str] | None = None

    def put(self, raw: bytes) -> str:
        """Stores bytes and returns their name. Raises StoreError when the disk refuses."""
        name = name_of(raw)
        path = self._objects / name
        if not path.exists():
            write_durably(path, raw)
        return name

    def get(self, name: str) -> bytes:
        """Returns stored bytes. Raises StoreError if they are missing or don't match their name."""
        path = self._objects / name
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise StoreError(f"Can't read {path}: {error.strerror}", "Restore the run directory") from None
        if name_of(raw) != name:
            raise StoreError(f"{path} was changed", "Restore the run directory")
        return raw

    def drop(self, names: Iterable[str]) -> None:
        """Removes objects, except those of candidates."""
        for name in set(names) - self._of_candidates():
            (self._objects / name).unlink(missing_ok=True)

    def keep(self, candidate: Candidate) -> None:
        """Stores a candidate. Raises StoreError when the disk refuses."""
        path = self._candidates / f"{candidate.digest}.json"
        if path.exists():
            return
        objects = {name: self.put(text.encode()) for name, text in sorted(candidate.files.items())}
        kept = self._of_candidates()
        write_durably(path, json.dumps(objects, indent=1) + "\n")
        kept.update(objects.values())

    def candidate(self, digest: str) -> Candidate:
        """Returns a stored candidate. Raises StoreError if the run didn't store it."""
        path = self._candidates / f"{digest}.json"
        try:
            objects = json.loads(path.read_text())
        except (OSError, ValueError):
            raise StoreError(f"This run holds no candidate {digest[:12]}", "Restore the run directory") from None
        return Candidate(files={name: self.get(item).decode() for name, item in objects.items()})

    def _of_candidates(self) -> set[str]:
        if self._kept is None:
            self._kept = set()
            for path in self._candidates.glob("*.json"):
                self._kept.update(json.loads(path.read_text()).values())
        return self._kept


def name_of(raw: bytes) -> str:
    """Returns the SHA-256 of the bytes in hexadecimal."""
    return hashlib.sha256(raw).hexdigest()
