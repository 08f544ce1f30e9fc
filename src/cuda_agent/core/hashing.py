"""Content hashes: what was judged is named by its digest."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping


def digest_text(*parts: str) -> str:
    """SHA-256 (hex) over length-prefixed parts, so that no two lists of parts collide."""
    state = hashlib.sha256()
    for part in parts:
        raw = part.encode()
        state.update(len(raw).to_bytes(8, "little"))
        state.update(raw)
    return state.hexdigest()


def digest_files(files: Mapping[str, str]) -> str:
    """Digest of a set of files, path -> text, independent of order."""
    return digest_text(*(part for path in sorted(files) for part in (path, files[path])))
