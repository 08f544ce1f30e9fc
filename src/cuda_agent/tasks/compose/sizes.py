"""Natural sizes, their names, and their bounds."""

import math
import random
from collections.abc import Sequence
from typing import NamedTuple

from cuda_agent.core.assets import tables
from cuda_agent.tasks.compose.chain import Plan
from cuda_agent.tasks.expressions import names_in
from cuda_agent.tasks.records import Seed


class Range(NamedTuple):
    """The bounds of a size. It is drawn from `drawn` and scaled between `least` and `usual`, and up to `most` only if
    nothing else helps."""

    drawn: list[int]
    least: int
    usual: int
    most: int


_TABLES = tables(__file__)
_RANGES = {word: Range(*bounds) for word, bounds in _TABLES["ranges"].items()}
_OTHER = Range([16, 32, 64, 128], 2, 16384, 1 << 20)
_FIXED = frozenset(_TABLES["fixed"].split())
_RANKS = {word: place for place, word in enumerate(_TABLES["order"].split())}
_SIDESTEPPING = frozenset(_TABLES["sidestepping"].split())
#: Odd factors of natural sizes, with their weights.
_FACTORS = {1: 8.0, 3: 3.0, 5: 1.0, 7: 1.0}
_FEW_FACTORS = {1: 8.0, 3: 2.0}
#: Further natural factors of a drawn size.
_SIDESTEPS = (0.75, 1.25, 1.5, 1.75)
#: The words of dimensions by their letters.
_BESIDE: list[tuple[str, dict[str, str]]] = _TABLES["beside"]
_BY_FAMILY: dict[str, dict[str, str]] = _TABLES["by_family"]
_BY_OPERATOR: dict[str, dict[str, str]] = _TABLES["by_operator"]
_BY_LETTER: dict[str, str] = _TABLES["by_letter"]


def word_for(seed: Seed, name: str) -> str:
    """Returns the natural name of a dimension of this seed: `height` for the H of an image, `inner` for the K of a
    product."""
    if len(name) > 1:
        return name
    own = _BY_OPERATOR.get(seed.operator, {}).get(name)
    if own is not None:
        return own
    first = names_in(seed.ports[0].layout)
    found = next((own[name] for letters, own in _BESIDE if name in own and set(letters) <= set(first)), None)
    if found is not None:
        return "picks" if found == "columns" and seed.family == "indexing" else found
    family = "transformers" if seed.library == "transformers" else seed.family
    return _BY_FAMILY.get(family, {}).get(name) or _BY_LETTER.get(name, name.lower())


def draw(seed: Seed, name: str, word: str, rng: random.Random) -> int:
    """Returns a first size, before it is scaled."""
    own = seed.sizes.get(name) if word_for(seed, name) == word else None
    found = rng.choice(own or _RANGES.get(word, _OTHER).drawn)
    if word in _SIDESTEPPING and rng.random() < 0.3 and found % 8 == 0:
        return int(found * rng.choice(_SIDESTEPS))
    return found


def words(plan: Plan) -> dict[tuple[int, str], str]:
    """Returns the name of each unknown of a chain."""
    found = {}
    for position, name in plan.unknowns():
        found[position, name] = name if name in plan.lead else word_for(plan.links[position].seed, name)
    named = names_in(plan.links[0].seed.ports[0].layout)
    if named and plan.lead:
        # The last dimension is the width of an image, or the length of a signal, whatever the operator calls it.
        before = "heads" if "heads" in plan.lead else plan.lead[-1]
        last = {"heads": "head_dim", "height": "width", "channels": "length"}.get(before)
        found |= {(0, named[-1]): last} if last else {}
    return found


def scalable(named: dict[tuple[int, str], str], rng: random.Random) -> list[tuple[tuple[int, str], ...]]:
    """Returns groups of unknowns that are scaled together, in the order in which they are tried."""
    groups: list[tuple[float, tuple[tuple[int, str], ...]]] = []
    for key, word in named.items():
        if word in _FIXED:
            continue
        # The order is a little random, so that not every task grows by its batch.
        rank = _RANKS.get(word, len(_RANKS)) + rng.choice((0.0, 0.0, 6.5))
        together = (
            tuple(other for other in named if named[other] in ("height", "width")) if word == "height" else (key,)
        )
        groups.append((rank, together))
    return [group for _, group in sorted(groups, key=lambda item: item[0])]


def reaches(named: dict[tuple[int, str], str]) -> dict[tuple[int, str], str]:
    """Returns the word whose range each unknown has. A batch of plain vectors may be as large as rows."""
    found = set(named.values())
    large = {"length", "height", "channels", "samples", "steps", "rows", "tokens", "keys", "columns", "points"}
    plain = not found & large
    return {key: "rows" if word == "batch" and plain else word for key, word in named.items()}


def scaled(size: int, factor: float, word: str, rng: random.Random, *, width: float = 1.0) -> int:
    """Returns a natural size near `size * factor`, within `width` times the word's usual bound; 0 is its widest
    bound."""
    room = _RANGES.get(word, _OTHER)
    most = max(min(room.most, int(room.usual * width)) if width else room.most, size)
    least = min(room.least, size)
    return natural(min(max(size * factor, least), most), rng, least, most, few=word == "batch")


def natural(size: float, rng: random.Random, least: int = 1, most: int = 1 << 40, *, few: bool = False) -> int:
    """Returns a power of two, or 3, 5 or 7 times one, within a quarter of `size`; powers of two are more frequent. With
    `few` it never has the factors 5 and 7, and isn't 3 or 6."""
    near = {}
    for factor, weight in (_FEW_FACTORS if few else _FACTORS).items():
        for power in range(41):
            found = factor << power
            if few and factor == 3 and power < 2:
                continue
            if least <= found <= most and size / 1.25 <= found <= size * 1.25:
                near[found] = weight
    if not near and few:
        powers = [1 << power for power in range(41) if least <= 1 << power <= most]
        return min(powers, key=lambda power: abs(math.log(power / size)), default=int(least))
    if not near:
        return int(min(max(round(size), least), most))
    return rng.choices(sorted(near), [near[found] for found in sorted(near)])[0]


def lead_for(layout: str, following: Sequence[Seed], rng: random.Random) -> tuple[str, ...]:
    """Returns words for the dimensions before the named ones of a first tensor, such that the following operators
    accept it: images before a 2-D convolution, rows or sequences before a linear layer."""
    settled = next((seed for seed in following if not seed.ports[0].layout.startswith("*")), None)
    if settled is not None:
        wanted = [word_for(settled, name) for name in names_in(settled.ports[0].layout)]
        named = next(seed for seed in following if names_in(seed.ports[0].layout))
        if named is not settled and wanted[-1] not in ("width", "head_dim"):
            # An operator between them may change the last dimension.
            wanted[-1:] = [word_for(named, names_in(named.ports[0].layout)[-1])]
        return tuple(wanted if layout == "*" else wanted[: max(0, len(wanted) - len(names_in(layout)))])
    if layout == "*":
        last = any(seed.ports[0].layout.startswith("* ") for seed in following)
        shapes = [("rows", "features"), ("batch", "length", "hidden")]
        shapes += [] if last else [("batch", "channels", "height", "width")]
        return rng.choice(shapes)
    return rng.choice((("rows",), ("tokens",), ("batch", "length"), ("batch", "length")))
