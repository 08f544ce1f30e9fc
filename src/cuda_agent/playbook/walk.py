"""Traversal of graphs: of values, nodes and expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

Item = TypeVar("Item", str, int)


def reached(starts: Iterable[Item], following: Callable[[Item], Iterable[Item]]) -> tuple[Item, ...]:
    """Returns the starts and everything that follows from them, each once, in depth-first order."""
    found: dict[Item, None] = {}
    stack = list(starts)
    while stack:
        item = stack.pop()
        if item not in found:
            found[item] = None
            stack += following(item)
    return tuple(found)
