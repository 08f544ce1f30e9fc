"""Caches which seeds follow each other, because every chain needs the weights of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from cuda_agent.tasks.compose.affinity import affinity, domain, role, suits
from cuda_agent.tasks.records import Seed

_REPEATED = ("matrix product", "convolution", "activation")


class Relations:
    """The weights of pairs of seeds, which are numbered by their place."""

    def __init__(self, seeds: Sequence[Seed]) -> None:
        self._seeds = seeds
        self._domains = [domain((seed,)) for seed in seeds]
        self._again = [role(seed) in _REPEATED for seed in seeds]
        #: (the seed's identity, whether others follow it) -> the affinities of all seeds with it.
        self._affinities: dict[tuple[int, bool], list[float]] = {}
        self._suits = cache(lambda flowing: [suits(seed, flowing) for seed in seeds])

    def neighbours(self, chain: Sequence[Seed], after: bool) -> list[float]:
        """Returns for each seed how well it follows the chain, or precedes it; 0 means never."""
        end = chain[-1] if after else chain[0]
        suiting = self._suits(domain(chain))
        inside = {seed.operator for seed in chain}
        own: dict[str, float] = {}
        found = []
        for place, likes in enumerate(self._affinity(end, after)):
            if likes:
                likes *= suiting[place]
                flowing = self._domains[place]
                if likes and flowing != "rows":
                    if flowing not in own:
                        own[flowing] = min(suits(seed, flowing) for seed in chain)
                    likes *= own[flowing]
                if self._seeds[place].operator in inside and not self._again[place]:
                    likes = 0.0
            found.append(likes)
        return found

    def _affinity(self, end: Seed, after: bool) -> list[float]:
        key = (id(end), after)
        if key not in self._affinities:
            self._affinities[key] = [affinity(end, seed) if after else affinity(seed, end) for seed in self._seeds]
        return self._affinities[key]
