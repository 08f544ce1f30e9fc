"""Shortens texts and names for a page."""

from __future__ import annotations

import re

_LENGTH = re.compile(r"[1-9][0-9]{0,3}")


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
