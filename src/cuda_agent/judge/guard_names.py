"""How the guard's lists of names are written."""

from __future__ import annotations


def words(text: str) -> frozenset[str]:
    """The set of the blank-separated words."""
    return frozenset(text.split())
