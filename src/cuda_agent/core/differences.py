"""Compares nested settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def differing(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Returns the dotted name of every value that differs -> (before, after). None stands for a missing value."""
    found: dict[str, tuple[Any, Any]] = {}
    for key in dict.fromkeys((*before, *after)):
        old, new = before.get(key), after.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found |= differing(old, new, f"{prefix}{key}.")
        elif old != new:
            found[f"{prefix}{key}"] = (old, new)
    return found
