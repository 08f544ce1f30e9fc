"""Values for a configuration, from a file and from the command line, each known by what the user called it; and their
differences."""

import copy
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from cuda_agent.core.config import Configuration
from cuda_agent.core.errors import UsageError

Kind = TypeVar("Kind", bound=Configuration)


def read_settings(path: Path) -> dict[str, Any]:
    """Reads TOML from a file whose name ends in .toml, and YAML, of which JSON is a part, from any other. Raises
    UsageError."""
    form = "TOML" if path.suffix == ".toml" else "YAML"
    try:
        text = path.read_text()
        values = tomllib.loads(text) if form == "TOML" else yaml.safe_load(text)
    except OSError as error:
        raise UsageError(f"Can't read {path}: {error.strerror}", "Check the path") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"{path} is not {form}: {' '.join(str(error).split())[:200]}", "Correct it") from None
    if values is not None and not isinstance(values, dict):
        raise UsageError(f"{path} holds no settings", "Write `name: value` on each line")
    return values or {}


class Settings:
    """Nested values. Keys are dotted: `judge.timing_budget_s`."""

    def __init__(self, file: Path | None = None, values: Mapping[str, Any] | None = None) -> None:
        """Raises UsageError where the file can't be read. `values` stand for its content."""
        self.file = file
        self.values = dict(values) if values is not None else {} if file is None else read_settings(file)
        #: what the user typed on the command line, by its key.
        self.options: dict[str, str] = {}

    def get(self, key: str, default: Any = None) -> Any:
        """Returns `default` also for a null."""
        inner: Any = self.values
        for name in key.split("."):
            inner = inner.get(name) if isinstance(inner, dict) else None
        return default if inner is None else inner

    def put(self, key: str, value: Any, option: str = "") -> None:
        """Sets a value. `option` is the option that the user gave it by. A value that isn't a table where one must be
        stays, and `parse` refuses it."""
        *outer, last = key.split(".")
        inner: Any = self.values
        for name in outer:
            if inner.get(name) is None:
                inner[name] = {}
            inner = inner[name]
            if not isinstance(inner, dict):
                return
        inner[last] = value
        if option:
            self.options[key] = option

    def over(self, base: Mapping[str, Any]) -> "Settings":
        """Returns these where they are given, and otherwise those of `base`."""
        merged = Settings(self.file, _merged(copy.deepcopy(base), self.values))
        merged.options = self.options
        return merged

    def parse(self, kind: type[Kind]) -> Kind:
        """Raises UsageError that names file and key, or the option."""
        return kind.parse(self.values, str(self.file or ""), self.options)


def _merged(base: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    both = {
        key: _merged(base[key], value) if isinstance(value, Mapping) and isinstance(base.get(key), Mapping) else value
        for key, value in values.items()
    }
    return {**base, **both}


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
