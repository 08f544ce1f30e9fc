"""Pairs of operators of which the second undoes, ignores or saturates the result of the first (`pointless.yaml`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from cuda_agent.core.assets import tables


def _operators(text: str, groups: Mapping[str, set[str]]) -> set[str]:
    """Returns the operators of a text such as `sqrt @even -abs`, from left to right."""
    found: set[str] = set()
    for word in text.split():
        if word.startswith("-"):
            found.discard(word[1:])
        else:
            found |= groups[word[1:]] if word.startswith("@") else {word}
    return found


def _read() -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Returns (the groups, an operator -> the operators that may not follow it)."""
    groups: dict[str, set[str]] = {}
    for name, text in tables(__file__)["groups"].items():
        groups[name] = _operators(text, groups)
    excluded: defaultdict[str, set[str]] = defaultdict(set)
    for first, second in tables(__file__)["rules"]:
        for operator in _operators(first, groups):
            excluded[operator] |= _operators(second, groups)
    return groups, excluded


_GROUPS, _POINTLESS = _read()
EXTREMES = frozenset(_GROUPS["extremes"])


def pointless(before: str, after: str) -> bool:
    """Returns whether the operator `after` makes no sense on the result of `before`."""
    return after in _POINTLESS.get(before, ())
