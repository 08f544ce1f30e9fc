"""Finds the nearest of many sources: it computes exact similarities of one source to thousands with an inverted
index."""

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from cuda_agent.tasks.decontaminate.shingles import Bag, Shingles

Scores = NDArray[np.float64]


class Index:
    """An index of sources, numbered in the order in which they are added."""

    def __init__(self, sources: Iterable[Shingles] = ()) -> None:
        self._computation, self._syntax = _Postings(), _Postings()
        for source in sources:
            self.add(source)

    def add(self, source: Shingles) -> None:
        self._computation.add(source.computation)
        self._syntax.add(source.syntax)

    def similarities(self, source: Shingles) -> Scores:
        """Returns the similarity to each of the index's sources, 0 to 1. It is that of the computations, or that of the
        syntax where one of the two sources has no computation."""
        if not source.computation:
            return self._syntax.similarities(source.syntax)
        scores = self._computation.similarities(source.computation)
        without = np.array(self._computation.totals) == 0
        return np.where(without, self._syntax.similarities(source.syntax), scores) if without.any() else scores


class _Postings:
    def __init__(self) -> None:
        self._places: defaultdict[tuple[int, int], array[int]] = defaultdict(lambda: array("q"))
        self.totals = array("d")

    def add(self, bag: Bag) -> None:
        for item in _flat(bag):
            self._places[item].append(len(self.totals))
        self.totals.append(bag.total())

    def similarities(self, bag: Bag) -> Scores:
        """Returns the similarity to each bag: the shared shingles over all, each as often as it occurs (Jaccard of
        multisets); 0 where either is empty."""
        lists = [self._places[item] for item in _flat(bag) if item in self._places]
        if not lists:
            return np.zeros(len(self.totals))
        shared = np.bincount(np.concatenate(lists), minlength=len(self.totals)).astype(np.float64)
        return shared / (np.array(self.totals) + bag.total() - shared)


def _flat(bag: Bag) -> Iterator[tuple[int, int]]:
    """Yields the bag as a set: a shingle that occurs twice is in it as (shingle, 0) and (shingle, 1)."""
    return ((shingle, occurrence) for shingle, count in bag.items() for occurrence in range(count))
