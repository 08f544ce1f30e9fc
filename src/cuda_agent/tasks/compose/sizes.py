"""Sizes that look natural, what they are called, and how far each may go."""

from __future__ import annotations

import random
from collections.abc import Sequence

from cuda_agent.tasks.compose.chain import Plan
from cuda_agent.tasks.compose.layouts import names_of
from cuda_agent.tasks.records import Seed

#: word -> what is drawn first, and the bounds within which it may be scaled.
_RANGES: dict[str, tuple[tuple[int, ...], int, int]] = {
    "batch": ((8, 16, 32, 48, 64, 128), 1, 1024),
    "rows": ((2048, 4096, 8192, 16384), 128, 1 << 22),
    "tokens": ((4096, 8192, 16384, 32768), 256, 1 << 20),
    "length": ((512, 1024, 1536, 2048, 4096), 64, 32768),
    "frames": ((4096, 8192, 16384, 32000), 256, 1 << 20),
    "heads": ((8, 12, 16, 32), 4, 64),
    "channels": ((32, 64, 96, 128, 192, 256), 3, 1024),
    "depth": ((8, 16, 32), 4, 128),
    "height": ((28, 32, 56, 64, 112, 128, 224), 7, 1024),
    "width": ((28, 32, 56, 64, 112, 128, 224), 7, 1024),
    "features": ((512, 768, 1024, 1536, 2048, 4096, 8192), 64, 16384),
    "hidden": ((768, 1024, 1536, 2048, 4096), 128, 12288),
    "inner": ((512, 1024, 1536, 2048, 4096), 128, 16384),
    "columns": ((512, 1024, 2048, 3072, 4096), 128, 16384),
    "classes": ((1000, 4096, 10000, 32000), 10, 131072),
    "vocabulary": ((16384, 32000, 50304), 1000, 262144),
}
_OTHER = ((16, 32, 64, 128), 2, 16384)
#: what is scaled first to meet a time.
_ORDER = (
    "rows", "tokens", "batch", "frames", "length", "depth", "height", "columns", "features", "hidden", "channels", "inner",
    "classes",
)  # fmt: skip
#: odd factors of natural sizes, and how often each is taken.
_FACTORS = {1: 8.0, 3: 3.0, 5: 1.0, 7: 1.0}
_MATRIX = {"M": "rows", "K": "inner", "P": "columns"}
_SPATIAL = {"C": "channels", "D": "depth", "H": "height", "W": "width", "L": "length", "T": "frames"}
_PLAIN = {
    "L": "length",
    "T": "length",
    "S": "length",
    "E": "embedding",
    "V": "vocabulary",
    "D": "features",
    "Q": "queries",
}


def word_for(seed: Seed, name: str) -> str:
    """What a person calls a dimension of this seed: `height` for the H of an image, `inner` for the K of a product."""
    if len(name) > 1:
        return name
    inside = next((names for port in seed.ports if name in (names := names_of(port.layout))), (name,))
    first = names_of(seed.ports[0].layout)
    if name in ("N", "B"):
        return "batch" if len(inside) != 2 or "L" in inside else "rows"
    if "H" in first and "W" in first and name in _SPATIAL:
        return _SPATIAL[name]
    if name in _MATRIX and {"M", "K"} <= {letter for port in seed.ports for letter in names_of(port.layout)}:
        return _MATRIX[name]
    if name == "C":
        if "L" in first:
            return "channels"
        return "classes" if seed.family == "loss" else "features"
    if name == "H":
        return "heads"
    return _PLAIN.get(name, name.lower())


def draw(seed: Seed, name: str, word: str, rng: random.Random) -> int:
    """A first size, before the time is met."""
    return rng.choice(seed.sizes.get(name) or _RANGES.get(word, _OTHER)[0])


def words(plan: Plan) -> dict[tuple[int, str], str]:
    """What each unknown of a chain is called."""
    found = {}
    for position, name in plan.unknowns():
        found[position, name] = name if name in plan.lead else word_for(plan.links[position].seed, name)
    return found


def scalable(named: dict[tuple[int, str], str], rng: random.Random) -> list[tuple[tuple[int, str], ...]]:
    """Groups of unknowns that are scaled together, in the order in which they are tried."""
    ranks = {word: place for place, word in enumerate(_ORDER)}
    groups: list[tuple[float, tuple[tuple[int, str], ...]]] = []
    for key, word in named.items():
        if word == "height":
            groups.append((ranks[word], tuple(other for other in named if named[other] in ("height", "width"))))
        elif word in ranks:
            # A little disorder: not every task is made larger by its batch.
            groups.append((ranks[word] + rng.choice((0.0, 0.0, 3.5)), (key,)))
    return [group for _, group in sorted(groups, key=lambda item: item[0])]


def scaled(size: int, factor: float, word: str, rng: random.Random) -> int:
    """A natural size near `size * factor`, within the word's bounds."""
    _, least, most = _RANGES.get(word, _OTHER)
    return natural(min(max(size * factor, least), most), rng, least, most)


def natural(size: float, rng: random.Random, least: int = 1, most: int = 1 << 40) -> int:
    """A power of two, or 3, 5 or 7 times one, within a quarter of `size`; powers of two more often than others."""
    near = {}
    for factor, weight in _FACTORS.items():
        for power in range(41):
            found = factor << power
            if least <= found <= most and size / 1.25 <= found <= size * 1.25:
                near[found] = weight
    if not near:
        return int(min(max(round(size), least), most))
    return rng.choices(sorted(near), [near[found] for found in sorted(near)])[0]


def lead_for(layout: str, following: Sequence[Seed], rng: random.Random) -> tuple[str, ...]:
    """Words for what stands before the named dimensions of a first tensor, so that the operators that follow can take
    it: images before a 2-D convolution, rows or sequences before a linear layer."""
    wanted = next((seed.ports[0].layout for seed in following if not seed.ports[0].layout.startswith("*")), None)
    if layout == "*" and wanted is not None:
        seed = next(seed for seed in following if seed.ports[0].layout == wanted)
        return tuple(word_for(seed, name) for name in names_of(wanted))
    if wanted is not None:
        missing = names_of(wanted)[: -len(names_of(layout)) or None]
        seed = next(seed for seed in following if seed.ports[0].layout == wanted)
        return tuple(word_for(seed, name) for name in missing)
    if layout == "*":
        last = any(seed.ports[0].layout.startswith("* ") for seed in following)
        shapes = [("rows", "features"), ("batch", "length", "hidden")]
        shapes += [] if last else [("batch", "channels", "height", "width")]
        return rng.choice(shapes)
    return rng.choice((("rows",), ("tokens",), ("batch", "length"), ("batch", "length")))
