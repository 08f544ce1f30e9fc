"""Finds the nearest of many sources: it computes exact similarities of one source to thousands with an inverted
index."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cuda_agent.tasks.decontaminate.shingles import Bag, Shingles, flat

Scores = NDArray[np.float64]


class Index:
    """An index of sources, numbered in their order."""

    def __init__(self, sources: Sequence[Shingles]) -> None:
        self._size = len(sources)
        self._computation = _Postings([source.computation for source in sources])
        self._syntax = _Postings([source.syntax for source in sources])

    def similarities(self, source: Shingles) -> Scores:
        """Returns the similarity to each of the index's sources, as computed by `shingles.alike`."""
        if not source.computation:
            return self._syntax.similarities(source.syntax)
        scores = self._computation.similarities(source.computation)
        without = self._computation.empty
        if without.any():
            scores = np.where(without, self._syntax.similarities(source.syntax), scores)
        return scores


class _Postings:
    def __init__(self, bags: Sequence[Bag]) -> None:
        found: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for place, bag in enumerate(bags):
            for item in flat(bag):
                found[item].append(place)
        self._postings = {item: np.array(places, dtype=np.int64) for item, places in found.items()}
        self._totals = np.array([bag.total() for bag in bags], dtype=np.float64)
        self.empty = self._totals == 0

    def similarities(self, bag: Bag) -> Scores:
        """Returns the Jaccard similarity of multisets with each bag; 0 where either is empty."""
        lists = [self._postings[item] for item in flat(bag) if item in self._postings]
        size = len(self._totals)
        if not lists:
            return np.zeros(size)
        shared = np.bincount(np.concatenate(lists), minlength=size).astype(np.float64)
        return shared / (self._totals + bag.total() - shared)
