"""Content hashes."""

import hashlib
from collections.abc import Mapping


def digest_text(*parts: str) -> str:
    """Returns the SHA-256 (hex) of length-prefixed parts, so that different lists of parts never collide."""
    state = hashlib.sha256()
    for part in parts:
        raw = part.encode()
        state.update(len(raw).to_bytes(8, "little"))
        state.update(raw)
    return state.hexdigest()


def digest_files(files: Mapping[str, str]) -> str:
    """Returns the digest of a set of files, path -> text, independent of their order."""
    return digest_text(*(part for path in sorted(files) for part in (path, files[path])))
