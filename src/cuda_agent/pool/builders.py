"""Lends the builders of a pool to the threads that need one."""

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

from cuda_agent.core.config import JudgeOptions

Helper = TypeVar("Helper")

MOST_BUILDERS = 8


class Builders(Generic[Helper]):
    """The builders of a pool. Candidates that are to be judged get the next free builder before those that are compiled
    ahead."""

    def __init__(self, builders: Sequence[Helper]) -> None:
        self.all = tuple(builders)
        self._free = list(builders)
        self._changed = threading.Condition()
        self._first = 0
        #: The number of threads that wait for a builder.
        self.waiting = 0

    def __len__(self) -> int:
        return len(self.all)

    @contextlib.contextmanager
    def one(self, *, first: bool) -> Iterator[Helper]:
        """Waits for a free builder, which is the caller's in this block."""
        with self._changed:
            self.waiting, self._first = self.waiting + 1, self._first + first
            self._changed.wait_for(lambda: self._free and (first or not self._first))
            self.waiting, self._first = self.waiting - 1, self._first - first
            builder = self._free.pop()
            self._changed.notify_all()
        try:
            yield builder
        finally:
            with self._changed:
                self._free.append(builder)
                self._changed.notify_all()


def builders_for(options: JudgeOptions, *, devices: int, kept: int = 0) -> int:
    """Returns how many builders leave two cores to each device (for a judge and the program that it times), or the
    cores that are kept for timing. It is at most MOST_BUILDERS."""
    cores = len(os.sched_getaffinity(0))
    return max(1, min(MOST_BUILDERS, (cores - max(2 * devices, kept)) // options.compiler_jobs))
