"""Reads lists of names from a YAML file beside the module that uses them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path


@cache
def word_lists(module: str) -> Mapping[str, frozenset[str]]:
    """Returns the lists for a module, given as its `__file__`: NAME -> the blank-separated words of its text."""
    import yaml

    page = yaml.safe_load(Path(module).with_suffix(".yaml").read_text())
    return {name: frozenset(text.split()) for name, text in page.items()}
