"""Reads the tables and the templates of a module from the files beside it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import yaml


@cache
def tables(module: str) -> dict[str, Any]:
    """Returns the tables of a module, given as its `__file__`, by their names."""
    found: dict[str, Any] = yaml.safe_load(Path(module).with_suffix(".yaml").read_text())
    return found


def inverted(groups: dict[str, str]) -> dict[str, str]:
    """Returns NAME -> GROUP for groups with blank-separated names."""
    return {name: group for group, names in groups.items() for name in names.split()}


@cache
def templates(module: str, folder: str = "templates", *, autoescape: bool = False) -> jinja2.Environment:
    """Returns the templates in a folder beside a module, given as its `__file__`."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(module).parent / folder),
        undefined=jinja2.StrictUndefined,
        autoescape=autoescape,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
