"""Exact replacement of text, shared by Edit and MultiEdit."""

from __future__ import annotations

from pydantic import Field

from cuda_agent.agent.files import CallRefused
from cuda_agent.agent.tools.base import Arguments


class TextReplacement(Arguments):
    """One exact replacement."""

    old: str = Field(min_length=1, description="text as it stands in the file, unique unless replace_all")
    new: str
    replace_all: bool = False


def replace(text: str, change: TextReplacement, shown: str) -> tuple[str, int]:
    """Returns the changed text and the number of changes. Raises CallRefused if `old` is missing or not unique."""
    count = text.count(change.old)
    if change.old == change.new:
        raise CallRefused(f"{shown}: old and new are the same.")
    if count == 0:
        remedy = "Read it and copy the text exactly, blanks included"
        raise CallRefused(f"{shown}: the old text isn't in the file. {remedy}.")
    if count > 1 and not change.replace_all:
        raise CallRefused(f"{shown}: the old text occurs {count} times. Give more of it, or set replace_all.")
    return text.replace(change.old, change.new), count
