"""Processor time that a candidate takes while others are timed: a busy neighbour makes the baselines slow."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

from cuda_agent.workspace.process import descendants

#: share of one core, over all the time that isn't its own, above which it isn't idle.
SHARE = 0.1
LEAST_SECONDS = 0.02
_TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")


class Bystander:
    """The candidate's processes, looked at before and after each of its own bursts. `pid`: its worker's, as the judge
    sees it."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._took_ns = self._passed_ns = 0
        self._left: tuple[int, int] | None = None

    def leave(self) -> None:
        """It has nothing to do from here on."""
        self._left = self._processor_ns(), time.perf_counter_ns()

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """While it runs what it was asked to; what it did since it was left counts."""
        if self._left is not None:
            self._took_ns += max(0, self._processor_ns() - self._left[0])
            self._passed_ns += time.perf_counter_ns() - self._left[1]
        try:
            yield
        finally:
            self.leave()

    def verdict(self) -> str | None:
        """What it did, None when it was idle or the system doesn't say."""
        if self._took_ns < LEAST_SECONDS * 1e9 or self._took_ns < SHARE * self._passed_ns:
            return None
        return (
            f"the candidate's processes took {self._took_ns / 1e6:.0f} ms of processor time "
            f"in the {self._passed_ns / 1e6:.0f} ms in which others were timed"
        )

    def _processor_ns(self) -> int:
        """Of all its processes that are there now, and of their children that ended."""
        return sum(processor_ns(pid) for pid in (self._pid, *descendants(self._pid)))


def processor_ns(pid: int) -> int:
    """Processor time of all threads that a process ever had (by its clock, to the nanosecond where the system lets us
    read it), and of its children that it waited for (in ticks); 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as stream:
            user, system, *waited_for = map(int, stream.read().rpartition(")")[2].split()[11:15])
    except (OSError, ValueError):
        return 0
    try:
        # The clock of a process, as clock_getcpuclockid(3) makes it.
        own = time.clock_gettime_ns((~pid << 3) | 2)
    except OSError:
        own = (user + system) * _TICK_NS
    return own + sum(waited_for) * _TICK_NS
