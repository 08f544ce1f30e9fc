"""Texts of untrusted origin, fit for a terminal and for a page."""

from __future__ import annotations

import re

#: control characters but tabs and line ends: an escape sequence could rewrite what stands above it.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
#: marks that reorder or hide what stands around them: code could read as another than it is.
_HIDDEN = re.compile("[\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")

_LENGTH = re.compile(r"[1-9][0-9]{0,3}")


def plain(text: str) -> str:
    """Without control characters, so that a candidate's output can't steer the reader's terminal; marks that reorder or
    hide text are named, as `[U+202E]`."""
    text = _CONTROLS.sub("�", text.replace("\r\n", "\n"))
    return _HIDDEN.sub(lambda found: f"[U+{ord(found[0]):04X}]", text)


def symbol(name: str) -> str:
    """The function's name in a mangled C++ symbol, without its namespaces and arguments; anything else as it is."""
    rest, found = name.removeprefix("_Z").removeprefix("N"), ""
    if rest == name:
        return name
    while digits := _LENGTH.match(rest):
        end = digits.end() + int(digits[0])
        found, rest = rest[digits.end() : end], rest[end:]
    return found or name
