"""Chooses the CPU cores from which timed programs launch their kernels.

The time of a launch depends on its core: on the core's clock, its sibling thread and its distance to the GPU. A
scheduler leaves a process on one core for seconds, which would bias all rounds of that time alike. So all programs of
a round run on one core, and each round draws another idle core at random.

Compilers and imports that run beside a timing fill the machine, and each message between the judge and a worker then
waits milliseconds for the scheduler. `kept_for_timing` reserves cores for timed programs in that case.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterable, Iterator
from pathlib import Path

from cuda_agent.workers.gpulock import claimed

#: busy share of the last interval up to which a core counts as free.
FREE = 0.2
#: with fewer free cores the choice is left to the scheduler.
LEAST_FREE = 3
#: cores for a judge, the timed program and the next worker, with some to choose from.
LEAST_SHARE = 6
#: a NUMA node with at least LEAST_TO_KEEP cores reserves KEPT of them for timing: one for the judge, the others for the
#: timed programs to change between.
LEAST_TO_KEEP, KEPT = 12, 4

_CPUS, _NODES = Path("/sys/devices/system/cpu"), Path("/sys/devices/system/node")


class Cores:
    """Draws a core for each round. Call `pick` between rounds."""

    def __init__(self, rng: random.Random, near: set[int] | None = None, kept: Iterable[int] = ()) -> None:
        """`near`: cores on the device's NUMA node, which are preferred. `kept`: cores that other processes of this
        program don't use."""
        self._rng = rng
        self._allowed = os.sched_getaffinity(0)
        self._allowed = (self._allowed & near if near else set()) or self._allowed
        self._elsewhere = os.sched_getaffinity(0)
        self._before = core_ticks()
        self._judge, self._programs = divided(kept, near)

    def pick(self) -> int | None:
        """Returns a core that was free since the last call, or None where too few were."""
        now = core_ticks()
        free = free_cores(self._before, now)
        self._before = now
        if self._programs:
            # The core of the last round counts as busy, so the cores alternate.
            return self._rng.choice(sorted(free & self._programs or self._programs))
        free &= self._allowed
        return self._rng.choice(sorted(free)) if len(free) >= LEAST_FREE else None

    @contextlib.contextmanager
    def timing(self) -> Iterator[None]:
        """Runs this thread on the judge's reserved core, if there is one."""
        with _on(self._elsewhere if self._judge is None else {self._judge}):
            yield

    @contextlib.contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Lifts `timing` for a block that starts processes, since they inherit the thread's cores."""
        with _on(self._elsewhere):
            yield


def divided(kept: Iterable[int], near: set[int] | None = None) -> tuple[int | None, set[int]]:
    """Divides reserved cores `near` the device into the judge's core and those of timed programs. Returns None and an
    empty set where they aren't enough for both."""
    mine = set(kept) & near if near else set(kept)
    judge = min(mine, default=-1)
    programs = mine - siblings(judge)
    return (judge, programs) if programs else (None, set())


@contextlib.contextmanager
def kept_for_timing(cores: set[int]) -> Iterator[frozenset[int]]:
    """Reserves whole cores, with all their threads, on every node that has enough. The caller tells its other processes
    to keep off. No other process of this machine is given these cores until the block ends."""
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
    """Yields groups of whole cores with at least KEPT threads, as long as twice as many stay for others. It begins with
    the last cores, since the first often serve the machine's devices."""
    left = set(cores)
    while len(left) >= LEAST_TO_KEEP:
        group: set[int] = set()
        while len(group) < KEPT:
            group |= siblings(max(left - group)) & left
        yield group
        left -= group


def keep_off(kept: Iterable[int]) -> None:
    """Takes these cores from this thread and from what it starts later, unless it has no others."""
    _go_to(os.sched_getaffinity(0) - set(kept))


def siblings(core: int) -> set[int]:
    """Returns all threads of a core, with its neighbour where the system doesn't tell them."""
    return (_list_in(_CPUS / f"cpu{core}/topology/thread_siblings_list") or {core ^ 1}) | {core}


def _nodes() -> list[set[int]]:
    """Returns the cores of each NUMA node, as far as the system tells them."""
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
    # A container may forbid it, and an empty set is refused.
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, cores)


def share(cores: set[int], number: int, count: int) -> set[int]:
    """Returns the share of part `number` (from 0) of `count` that work side by side, spread over all nodes; all cores
    where a share would have fewer than `LEAST_SHARE`. Both threads of a core mostly belong to one share."""
    shares = [{core for core in cores if core // 2 % count == each} for each in range(count)]
    return shares[number] if min(map(len, shares)) >= LEAST_SHARE else cores


def near_gpu() -> set[int] | None:
    """Returns the cores on the NUMA node of torch's GPU, or None where the system doesn't tell them."""
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
    """Returns {0, 1, 2, 3, 8} for `0-3,8`, and None for a text of another form."""
    found: set[int] = set()
    try:
        for part in text.strip().split(","):
            first, _, last = part.partition("-")
            found.update(range(int(first), int(last or first) + 1))
    except ValueError:
        return None
    return found


def free_cores(before: dict[int, tuple[int, int]], after: dict[int, tuple[int, int]]) -> set[int]:
    """Returns the cores that were idle between two readings. A core without a whole tick in between counts as idle."""
    found = set()
    for core, (busy, total) in after.items():
        if core in before:
            worked, passed = busy - before[core][0], total - before[core][1]
            # One tick is 10 ms, about the length of a short round, so a single tick means nothing.
            if worked <= max(1.0, FREE * passed):
                found.add(core)
    return found


def core_ticks() -> dict[int, tuple[int, int]]:
    """Returns (busy, total) ticks of each core since the start; nothing where the system doesn't tell them."""
    return {int(name[3:]): ticks for name, ticks in stat_ticks().items() if name != "cpu"}


def stat_ticks() -> dict[str, tuple[int, int]]:
    """Returns (busy, total) ticks since the start of `cpu0`, `cpu1`, …, and of all together as `cpu`."""
    found = {}
    try:
        with open("/proc/stat") as stream:
            for line in stream:
                name, *fields = line.split()
                if name.startswith("cpu") and len(fields) >= 5:
                    ticks = [int(word) for word in fields[:8]]
                    found[name] = (sum(ticks) - ticks[3] - ticks[4], sum(ticks))
    except (OSError, ValueError):
        return {}
    return found
