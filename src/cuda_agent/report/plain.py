"""Texts of untrusted origin, fit for a terminal."""

from __future__ import annotations

#: control characters but tabs and line ends: an escape sequence could rewrite what stands above it.
_CONTROLS = {code: "�" for code in (*range(32), *range(127, 160)) if code not in (9, 10)}


def plain(text: str) -> str:
    """Without control characters, so that a candidate's output can't steer the reader's terminal."""
    return text.replace("\r\n", "\n").translate(_CONTROLS)
