"""Reads the tables of a module from the YAML file beside it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml


@cache
def tables(module: str) -> dict[str, Any]:
    """Returns the tables of a module, given as its `__file__`, by their names."""
    found: dict[str, Any] = yaml.safe_load(Path(module).with_suffix(".yaml").read_text())
    return found


def inverted(groups: dict[str, str]) -> dict[str, str]:
    """Returns NAME -> GROUP for groups with blank-separated names."""
    return {name: group for group, names in groups.items() for name in names.split()}
