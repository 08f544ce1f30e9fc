"""Makes texts of untrusted origin safe to show in a terminal and on a page."""

from __future__ import annotations

import re

#: control characters without tabs and line ends: an escape sequence could rewrite earlier output.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
#: marks that reorder or hide the text around them: code could look different from what runs.
_HIDDEN = re.compile("[\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")

_LENGTH = re.compile(r"[1-9][0-9]{0,3}")


def plain(text: str) -> str:
    """Removes control characters, so that a candidate's output can't control the terminal, and names marks that reorder
    or hide text (`[U+202E]`)."""
    text = _CONTROLS.sub("�", text.replace("\r\n", "\n"))
    return _HIDDEN.sub(lambda found: f"[U+{ord(found[0]):04X}]", text)


def cut(text: str, kept: int, hint: str = "") -> str:
    """Returns the two ends of a text that has more than `kept` characters."""
    if len(text) <= kept:
        return text
    half = kept // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters left out{hint} …]\n{text[-half:]}"


def symbol(name: str) -> str:
    """Returns the function's name in a mangled C++ symbol, without namespaces and arguments; any other text
    unchanged."""
    rest, found = name.removeprefix("_Z").removeprefix("N"), ""
    if rest == name:
        return name
    while digits := _LENGTH.match(rest):
        end = digits.end() + int(digits[0])
        found, rest = rest[digits.end() : end], rest[end:]
    return found or name
