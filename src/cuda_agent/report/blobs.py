"""Parts of a page that a browser decodes when a reader opens them: gzip in base64, each text once."""

from __future__ import annotations

import base64
import gzip
import hashlib


class Blobs:
    """The packed texts of a page, by name. Base64 can't end a script element."""

    def __init__(self) -> None:
        self._held: dict[str, str] = {}

    def put(self, text: str) -> str:
        """Packs a text and returns the name by which the page finds it."""
        raw = text.encode("utf-8", errors="replace")
        name = hashlib.sha256(raw).hexdigest()[:16]
        if name not in self._held:
            packed = gzip.compress(raw, compresslevel=9, mtime=0)
            self._held[name] = base64.b64encode(packed).decode()
        return name

    def items(self) -> list[tuple[str, str]]:
        """Returns the name and content of each text."""
        return list(self._held.items())
