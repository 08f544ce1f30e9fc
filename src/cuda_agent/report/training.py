"""`metrics.jsonl` of a training run -> a series a metric."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

METRICS_FILE = "metrics.jsonl"
_STEPS = ("step", "global_step", "training/global_step", "iteration", "epoch")
#: what a reader looks for first; any other number follows by its name.
_FIRST = ("reward", "entropy", "explained", "kl", "loss", "clip", "length", "grad", "lr")


@dataclass(frozen=True)
class Series:
    """`points`: (step, value) in the order of the steps, finite."""

    name: str
    points: tuple[tuple[float, float], ...]


def read_series(directory: Path) -> tuple[Series, ...]:
    """Of every number in the file's lines; nested ones by `outer/inner`. Lines that are cut short are left out."""
    found: dict[str, list[tuple[float, float]]] = {}
    for number, entry in enumerate(_entries(directory / METRICS_FILE)):
        numbers = dict(_numbers("", entry))
        step = next((numbers.pop(name) for name in _STEPS if name in numbers), float(number))
        for name, value in numbers.items():
            found.setdefault(name, []).append((step, value))
    names = sorted(found, key=lambda name: (_rank(name), name))
    return tuple(Series(name, tuple(sorted(found[name]))) for name in names)


def _entries(path: Path) -> Iterator[dict[str, object]]:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict):
            yield entry


def _numbers(prefix: str, entry: dict[str, object]) -> Iterator[tuple[str, float]]:
    for name, value in entry.items():
        if isinstance(value, dict):
            yield from _numbers(f"{prefix}{name}/", value)
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            yield f"{prefix}{name}", float(value)


def _rank(name: str) -> int:
    return next((rank for rank, part in enumerate(_FIRST) if part in name.lower()), len(_FIRST))
