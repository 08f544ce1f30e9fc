"""How many operators task number n has: the published shares, met over every prefix.

Each next task goes to the kind that lags furthest behind its share, so that no count is ever a whole task or two away
from what its share asks for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

#: number of torch operators -> percent of the tasks (paper, "Task synthesis"); 0 stands for one transformers module.
PUBLISHED_SHARES = {1: 3.40, 2: 83.77, 3: 7.62, 4: 2.80, 5: 1.23, 0: 1.18}


@dataclass
class Schedule:
    """`shares` in percent, which add up to 100."""

    shares: dict[int, float] = field(default_factory=lambda: dict(PUBLISHED_SHARES))
    _drawn: list[int] = field(default_factory=list)
    _counts: dict[int, int] = field(default_factory=dict)

    def kind(self, number: int) -> int:
        """Operators of task `number` (from 0); 0 for a transformers module."""
        while len(self._drawn) <= number:
            self._drawn.append(self._next(len(self._drawn) + 1))
        return self._drawn[number]

    def _next(self, total: int) -> int:
        """Of the kinds that may have one more without exceeding their share by one, that whose turn ends first."""
        due = []
        for kind, share in self.shares.items():
            given, part = self._counts.get(kind, 0), share / 100
            if given < part * total and part > 0:
                last = next(turn for turn in count(max(total, int((given + 1) / part) - 1)) if part * turn >= given + 1)
                due.append((last, kind))
        chosen = min(due)[1]
        self._counts[chosen] = self._counts.get(chosen, 0) + 1
        return chosen
