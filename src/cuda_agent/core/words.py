"""Reads tables and lists of names from a YAML file beside the module that uses them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any


@cache
def tables(module: str) -> dict[Any, Any]:
    """Returns the tables of a module, given as its `__file__`, by their names."""
    import yaml

    found: dict[Any, Any] = yaml.safe_load(Path(module).with_suffix(".yaml").read_text())
    return found


def words(module: str, name: str) -> list[str]:
    """Returns the blank-separated words of one of a module's tables, in their order."""
    text: str = tables(module)[name]
    return text.split()


@cache
def word_lists(module: str) -> Mapping[str, frozenset[str]]:
    """Returns the tables of a module that are lists: NAME -> the blank-separated words of its text."""
    return {name: frozenset(text.split()) for name, text in tables(module).items() if isinstance(text, str)}


def inverted(groups: Mapping[str, str]) -> dict[str, str]:
    """Returns NAME -> GROUP for groups with blank-separated names."""
    return {name: group for group, names in groups.items() for name in names.split()}
