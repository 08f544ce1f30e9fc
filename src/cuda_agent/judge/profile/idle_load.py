"""Measures the processor time that a candidate takes while other programs are timed, since that slows the baselines."""

import contextlib
import os
import time
from collections.abc import Iterator

from cuda_agent.workspace.descendants import descendants

#: share of one core, over the time outside its own bursts, above which a candidate isn't idle.
SHARE = 0.1
LEAST_SECONDS = 0.02
_TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")


class IdleLoad:
    """Counts the processor time of the candidate's processes once a round, less that of its own bursts. `pid` is its
    worker's, as the judge sees it."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._pids: tuple[int, ...] = (pid,)
        self._own_ns = self._own_wall_ns = 0
        self._first: tuple[int, int] | None = None
        self._took_ns = self._passed_ns = 0

    def look(self) -> None:
        """Takes a reading between rounds, since a walk over the processes takes most of a millisecond."""
        self._pids = (self._pid, *descendants(self._pid))
        now = sum(map(processor_ns, self._pids)), time.perf_counter_ns()
        if self._first is None:
            self._own_ns = self._own_wall_ns = 0
            self._first = now
        self._took_ns = now[0] - self._first[0] - self._own_ns
        self._passed_ns = now[1] - self._first[1] - self._own_wall_ns

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Counts the time in this block as the candidate's own. It takes microseconds, since no other program's burst
        has this before it. The work of processes that are new since `look` counts as done beside others."""
        before, begin = sum(map(_own_ns, self._pids)), time.perf_counter_ns()
        try:
            yield
        finally:
            self._own_ns += max(0, sum(map(_own_ns, self._pids)) - before)
            self._own_wall_ns += time.perf_counter_ns() - begin

    def verdict(self) -> str | None:
        """Returns what the candidate did beside others until the last look, or None when it was idle or the system
        doesn't tell."""
        if self._took_ns < LEAST_SECONDS * 1e9 or self._took_ns < SHARE * self._passed_ns:
            return None
        return (
            f"the candidate's processes took {self._took_ns / 1e6:.0f} ms of processor time "
            f"in the {self._passed_ns / 1e6:.0f} ms in which others were timed"
        )


def processor_ns(pid: int) -> int:
    """Returns the processor time in ns of all threads that a process ever had, and of its waited-for children (in
    ticks); 0 where it is gone."""
    return _own_ns(pid) + sum(process_ticks(pid)[2:]) * _TICK_NS


def _own_ns(pid: int) -> int:
    """Returns the CPU time of a process's threads in ns, by its clock as clock_getcpuclockid(3) makes it, and in ticks
    where the system refuses that."""
    try:
        return time.clock_gettime_ns((~pid << 3) | 2)
    except OSError:
        return sum(process_ticks(pid)[:2]) * _TICK_NS


def process_ticks(pid: int) -> list[int]:
    """Returns user and system time of a process and of its waited-for children; nothing where it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as stream:
            return list(map(int, stream.read().rpartition(")")[2].split()[11:15]))
    except (OSError, ValueError):
        return []
