"""Knows the tasks of a dataset by chain of operators and by computation, so that none is composed twice."""

from collections.abc import Sequence

from cuda_agent.core.assets import inverted, tables
from cuda_agent.tasks.decontaminate.index import Index
from cuda_agent.tasks.decontaminate.shingles import shingles

#: The similarity from which decontamination calls a task a duplicate of an earlier one.
ALIKE = 0.9
#: Operators with the same graph in `graphhash.py`.
_ONE_GRAPH = inverted(tables(__file__))


def chain_of(operators: Sequence[str]) -> tuple[str, ...]:
    """Returns the operators in order, with one name for those of one graph."""
    return tuple(_ONE_GRAPH.get(operator, operator) for operator in operators)


class Novelty:
    """The tasks of the dataset by their computation."""

    def __init__(self) -> None:
        self._chains: set[tuple[str, ...]] = set()
        self._index = Index()

    def add(self, operators: Sequence[str], source: str) -> None:
        self._chains.add(chain_of(operators))
        self._index.add(shingles(source, "a composed task"))

    def has_chain(self, operators: Sequence[str]) -> bool:
        """Returns whether a task has these operators in this order, at any sizes."""
        return chain_of(operators) in self._chains

    def has_alike(self, source: str) -> bool:
        """Returns whether a task has nearly the same computation."""
        found = self._index.similarities(shingles(source, "a composed task"))
        return bool((found >= ALIKE).any())
