"""Reads `metrics.jsonl` of a training run: one series for each metric of each stage."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cuda_agent.core.lines import read_objects

METRICS_FILE = "metrics.jsonl"
_STEPS = ("step", "global_step", "training/global_step", "iteration", "epoch")
#: metrics whose names have these parts come first, the others follow by name.
_FIRST = ("reward", "pass_rate", "faster_rate", "geomean", "entropy", "explained", "kl", "loss", "clip", "grad")


@dataclass(frozen=True)
class Series:
    """One metric of one stage. `points` are finite (step, value) pairs in the order of the steps."""

    stage: str
    name: str
    points: tuple[tuple[float, float], ...]

    @property
    def is_main(self) -> bool:
        """Whether the page shows it before the others."""
        return _rank(self.name) < len(_FIRST)


def read_series(directory: Path) -> tuple[Series, ...]:
    """Returns a series for every number in the file's lines, in the order of the stages. A nested number is named
    `outer/inner`. Damaged lines are left out."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    stages: dict[str, int] = {}
    for number, entry in enumerate(read_objects(directory / METRICS_FILE)):
        stage = str(entry.get("stage", ""))
        stages.setdefault(stage, len(stages))
        numbers = dict(_numbers("", entry))
        step = next((numbers.pop(name) for name in _STEPS if name in numbers), float(number))
        for name, value in numbers.items():
            found.setdefault((stage, name), []).append((step, value))
    keys = sorted(found, key=lambda key: (stages[key[0]], _rank(key[1]), key[1]))
    return tuple(Series(stage, name, tuple(sorted(found[stage, name]))) for stage, name in keys)


def _numbers(prefix: str, entry: dict[str, object]) -> Iterator[tuple[str, float]]:
    for name, value in entry.items():
        if isinstance(value, dict):
            yield from _numbers(f"{prefix}{name}/", value)
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            yield f"{prefix}{name}", float(value)


def _rank(name: str) -> int:
    return next((rank for rank, part in enumerate(_FIRST) if part in name.lower()), len(_FIRST))
