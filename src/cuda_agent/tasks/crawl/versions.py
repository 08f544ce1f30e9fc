"""Marks seeds that need a newer library, as listed in `newer.yaml`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

import yaml

from cuda_agent.tasks.records import Seed


def marked(seeds: Iterable[Seed]) -> tuple[Seed, ...]:
    """Returns the seeds, each with the version that it needs."""
    return tuple(seed.model_copy(update={"needs": _needs(seed)}) for seed in seeds)


def _needs(seed: Seed) -> dict[str, str]:
    for version, names in _newer().get(seed.library, {}).items():
        if seed.name in names or seed.name.split(".")[0] in names:
            return {seed.library: version}
    return {}


@cache
def _newer() -> dict[str, dict[str, list[str]]]:
    found: dict[str, dict[str, list[str]]] = yaml.safe_load(Path(__file__).with_name("newer.yaml").read_text())
    return found
