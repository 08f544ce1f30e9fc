"""The processor time of a worker's threads, read from outside: no call can take less than its busiest thread.

On a CPU the judge's clock around a burst also holds copies of inputs and outputs and the time slices of other programs,
which hide a short kernel. The system counts the time of each thread in nanoseconds, whatever else runs, and a program
can't change that count. The reading begins before the inputs come, so that nothing is computed ahead of the calls. A
thread that waits spins for a while before it sleeps, which counts as work as long as the request lasts; so of threads
that don't make the calls only the time beyond a null program's request counts.
"""

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

from cuda_agent.core.intervals import low_quantile, lower_bound, median
from cuda_agent.judge.profile.bursts import Round, Work, bursts_of
from cuda_agent.workspace.descendants import descendants

#: share of the events and µs per burst that the accounts may exceed them by.
_SHARE, _BURST_US = 0.1, 60.0
#: a one-sided 95 % bound of a median needs five samples.
_LEAST = 5


class ThreadTimes:
    """What the system says of the threads of a process and its descendants from now on. None: nothing."""

    def __init__(self, pid: int | None) -> None:
        self._pid = pid
        self._before = _read(pid)

    def until_now(self, run_us: float) -> Work | None:
        """Returns what the busiest threads did, a new one included. `run_us`: see `Work`. None where the system doesn't
        tell."""
        spent: dict[bool, float] = {True: 0.0, False: 0.0}
        for thread, now in _read(self._pid).items():
            spent[thread[0]] = max(spent[thread[0]], (now - self._before.get(thread, 0)) / 1e3)
        return Work(spent[True], spent[False], run_us) if self._before else None


def _read(root: int | None) -> dict[tuple[bool, int], int]:
    """Returns (is it a process's first thread, its number) -> processor time in ns, for all threads of a process and
    its descendants. Those that have ended count as one, under the process's negative number."""
    found: dict[tuple[bool, int], int] = {}
    for pid in () if root is None else (root, *descendants(root)):
        with contextlib.suppress(OSError):
            mine = {}
            for thread in Path(f"/proc/{pid}/task").iterdir():
                with contextlib.suppress(OSError, ValueError, IndexError):
                    mine[thread.name == str(pid), int(thread.name)] = int((thread / "schedstat").read_text().split()[0])
            if mine:
                # The process's clock, as clock_getcpuclockid(3) makes it.
                mine[False, -pid] = time.clock_gettime_ns((~pid << 3) | 2) - sum(mine.values())
            found |= mine
    return found


def disagreement(rounds: Sequence[Round], name: str, trusted: Sequence[str]) -> str | None:
    """Returns why the program's events can't be believed, or None: its threads worked for longer."""
    bursts = [burst for burst in bursts_of(rounds, name) if burst.work is not None]
    least = _least(rounds, name)
    if len(least) < _LEAST or name in trusted:
        return None
    event_us, calls = median(b.median_us for b in bursts), median(len(b.event_us) for b in bursts)
    hidden_us = lower_bound([bound - b.mean_us for bound, b in zip(least, bursts, strict=True)])
    hidden_us -= _usual(rounds, trusted)
    if hidden_us <= _SHARE * event_us + _BURST_US / calls:
        return None
    return (
        f"the busiest thread of its worker took at least {hidden_us:.1f} µs per call more than its events, "
        f"whose median is {event_us:.1f} µs"
    )


def least_us(rounds: Sequence[Round], name: str, trusted: Sequence[str]) -> float:
    """Returns what a call takes at least, in µs, in 95 % of the rounds; 0 where nothing is known."""
    least = _least(rounds, name)
    return low_quantile(least) - _usual(rounds, trusted) if len(least) >= _LEAST else 0.0


def _usual(rounds: Sequence[Round], trusted: Sequence[str]) -> float:
    """Returns the µs per call by which the accounts of trusted programs typically exceed their events."""
    found = [0.0]
    for other in trusted:
        bursts = [burst for burst in bursts_of(rounds, other) if burst.work is not None]
        beyond = [bound - b.mean_us for bound, b in zip(_least(rounds, other), bursts, strict=True)]
        found += [median(beyond)] if beyond else []
    return max(found)


def _least(rounds: Sequence[Round], name: str) -> list[float]:
    """Returns what a call took at least, in µs, in each round that has accounts."""
    nulls = [r.null.work for r in rounds if r.null is not None and r.null.work is not None]
    if not nulls:
        return []
    calling_us, run_us = median(null.calling_us for null in nulls), median(null.run_us for null in nulls)
    return [
        max(burst.work.calling_us - calling_us, burst.work.helping_us - run_us) / len(burst.event_us)
        for burst in bursts_of(rounds, name)
        if burst.work is not None
    ]
