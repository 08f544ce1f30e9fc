"""Gives the number of operators of task n, so that every prefix of the tasks has the published shares.

Each next task gets the kind that is furthest below its share, so no count is ever more than two tasks away from its
share.
"""

from dataclasses import dataclass, field
from itertools import count

#: Number of torch operators -> percent of the tasks (paper, "Task synthesis"); 0 is one transformers module.
PUBLISHED_SHARES = {1: 3.40, 2: 83.77, 3: 7.62, 4: 2.80, 5: 1.23, 0: 1.18}


@dataclass
class OperatorSchedule:
    """The kinds of tasks in order. `shares` are in percent and add up to 100."""

    shares: dict[int, float] = field(default_factory=lambda: dict(PUBLISHED_SHARES))
    _drawn: list[int] = field(default_factory=list)
    _counts: dict[int, int] = field(default_factory=dict)

    def kind(self, number: int) -> int:
        """Returns the number of operators of task `number` (from 0); 0 is a transformers module."""
        while len(self._drawn) <= number:
            self._drawn.append(self._next(len(self._drawn) + 1))
        return self._drawn[number]

    def _next(self, total: int) -> int:
        """Returns the kind with the earliest deadline among those that don't exceed their share with one more task."""
        due = []
        for kind, share in self.shares.items():
            given, part = self._counts.get(kind, 0), share / 100
            if given < part * total and part > 0:
                last = next(turn for turn in count(max(total, int((given + 1) / part) - 1)) if part * turn >= given + 1)
                due.append((last, kind))
        chosen = min(due)[1]
        self._counts[chosen] = self._counts.get(chosen, 0) + 1
        return chosen
