"""Which CPU cores a round's bursts are launched from on a GPU.

A launch of some microseconds depends on the core that it runs on (its clock, its neighbour, its distance to the GPU),
and a scheduler leaves a worker where it is for seconds: rounds would share a mood that belongs to no program. So all
programs of a round run on one core, another one each round, drawn at random among those that nobody uses.

Where compilers and imports go on beside what is timed, they fill the machine, and each of the judge's and the worker's
messages waits for a scheduler's slice of milliseconds. There some cores are kept for what is timed
(`kept_for_timing`).
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterable, Iterator
from pathlib import Path

from cuda_agent.workers.gpulock import claimed

#: share of the last interval that a core may have worked and still count as free.
FREE = 0.2
#: with fewer free cores the scheduler knows better.
LEAST_FREE = 3
#: for a judge, the program that it times, and the next one's worker, with some to choose from.
LEAST_SHARE = 6
#: of a machine's node with so many cores, so many are kept for what is timed: for a judge, and for programs to change
#: between.
LEAST_TO_KEEP, KEPT = 12, 4

_CPUS, _NODES = Path("/sys/devices/system/cpu"), Path("/sys/devices/system/node")


class Cores:
    """Draws a core for a round; `pick` is to be called between rounds."""

    def __init__(self, rng: random.Random, near: set[int] | None = None, kept: Iterable[int] = ()) -> None:
        """`near`: the cores beside the device; others aren't drawn, as long as some of these are ours. `kept`: cores
        that everybody else keeps off."""
        self._rng = rng
        self._allowed = os.sched_getaffinity(0)
        self._allowed = (self._allowed & near if near else set()) or self._allowed
        self._elsewhere = os.sched_getaffinity(0)
        self._before = core_ticks()
        self._judge, self._programs = divided(kept, near)

    def pick(self) -> int | None:
        """A core that was free since the last call; None where too few are."""
        now = core_ticks()
        free = free_cores(self._before, now)
        self._before = now
        if self._programs:
            # The last round's own is busy, so they change.
            return self._rng.choice(sorted(free & self._programs or self._programs))
        free &= self._allowed
        return self._rng.choice(sorted(free)) if len(free) >= LEAST_FREE else None

    @contextlib.contextmanager
    def timing(self) -> Iterator[None]:
        """This thread has its core for itself, if one is kept."""
        with _on(self._elsewhere if self._judge is None else {self._judge}):
            yield

    @contextlib.contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Amid `timing`, for what starts processes, which stay where they are started."""
        with _on(self._elsewhere):
            yield


def divided(kept: Iterable[int], near: set[int] | None = None) -> tuple[int | None, set[int]]:
    """Of cores that everybody else keeps off, those `near` the device: the judge's own, and those that programs are
    timed on. None and none where they aren't enough for both."""
    mine = set(kept) & near if near else set(kept)
    judge = min(mine, default=-1)
    programs = mine - siblings(judge)
    return (judge, programs) if programs else (None, set())


@contextlib.contextmanager
def kept_for_timing(cores: set[int]) -> Iterator[frozenset[int]]:
    """Of these cores those that whoever times has for itself, as long as everybody who is told keeps off: on every node
    that has enough some whole cores, with all their threads. Nobody else of this machine is given them meanwhile."""
    with contextlib.ExitStack() as stack:
        found: set[int] = set()
        for node in _nodes() or [cores]:
            for group in _groups(node & cores):
                descriptor = claimed(f"cores-{min(group)}")
                if descriptor is not None:
                    stack.callback(os.close, descriptor)
                    found |= group
                    break
        yield frozenset(found)


def _groups(cores: set[int]) -> Iterator[set[int]]:
    """Whole cores, KEPT threads or more at a time, as long as others have twice as many; the last first, since the
    first often serve the machine's devices."""
    left = set(cores)
    while len(left) >= LEAST_TO_KEEP:
        group: set[int] = set()
        while len(group) < KEPT:
            group |= siblings(max(left - group)) & left
        yield group
        left -= group


def keep_off(kept: Iterable[int]) -> None:
    """This thread, and what it starts from now on, leaves these cores to others, where it has any besides."""
    _go_to(os.sched_getaffinity(0) - set(kept))


def siblings(core: int) -> set[int]:
    """The threads of a core, itself among them; its neighbour where the system doesn't say."""
    return (_list_in(_CPUS / f"cpu{core}/topology/thread_siblings_list") or {core ^ 1}) | {core}


def _nodes() -> list[set[int]]:
    """Cores by the part of the machine whose memory is near them, as far as the system says."""
    lists = (_list_in(path) for path in sorted(_NODES.glob("node[0-9]*/cpulist")))
    return [cores for cores in lists if cores]


@contextlib.contextmanager
def _on(cores: set[int]) -> Iterator[None]:
    before = os.sched_getaffinity(0)
    _go_to(cores)
    try:
        yield
    finally:
        _go_to(before)


def _go_to(cores: set[int]) -> None:
    # A container may forbid it; nobody has none.
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, cores)


def share(cores: set[int], number: int, count: int) -> set[int]:
    """Those of one of `count` that are at work side by side, the `number`-th from 0: of every part of the machine about
    as many; all where any of them would have fewer than `LEAST_SHARE`. Both threads of a core mostly go to one, whether
    they are neighbours or half of all apart."""
    shares = [{core for core in cores if core // 2 % count == each} for each in range(count)]
    return shares[number] if min(map(len, shares)) >= LEAST_SHARE else cores


def near_gpu() -> set[int] | None:
    """Cores on the side of the machine where torch's GPU is; None where the system doesn't say."""
    import torch

    facts = torch.cuda.get_device_properties(0)
    try:
        address = f"{facts.pci_domain_id:04x}:{facts.pci_bus_id:02x}:{facts.pci_device_id:02x}.0"
    except AttributeError:
        return None
    return _list_in(Path("/sys/bus/pci/devices") / address / "local_cpulist")


def _list_in(path: Path) -> set[int] | None:
    try:
        return parse_list(path.read_text())
    except OSError:
        return None


def parse_list(text: str) -> set[int] | None:
    """`0-3,8` -> {0, 1, 2, 3, 8}; None where it isn't such a list."""
    found: set[int] = set()
    try:
        for part in text.strip().split(","):
            first, _, last = part.partition("-")
            found.update(range(int(first), int(last or first) + 1))
    except ValueError:
        return None
    return found


def free_cores(before: dict[int, tuple[int, int]], after: dict[int, tuple[int, int]]) -> set[int]:
    """Cores that were idle between two readings; a core without a whole tick in between counts as idle."""
    found = set()
    for core, (busy, total) in after.items():
        if core in before:
            worked, passed = busy - before[core][0], total - before[core][1]
            # One tick is 10 ms, about what a short round lasts: a single one says nothing.
            if worked <= max(1.0, FREE * passed):
                found.add(core)
    return found


def core_ticks() -> dict[int, tuple[int, int]]:
    """(busy, total) ticks of each core since the machine started; empty where the system doesn't say."""
    found = {}
    try:
        with open("/proc/stat") as stream:
            for line in stream:
                name, *fields = line.split()
                if name.startswith("cpu") and name[3:].isdigit() and len(fields) >= 5:
                    ticks = [int(word) for word in fields[:8]]
                    found[int(name[3:])] = (sum(ticks) - ticks[3] - ticks[4], sum(ticks))
    except (OSError, ValueError):
        return {}
    return found
