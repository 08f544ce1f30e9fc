"""What a benchmark run is asked to do, and how many tasks are at work at once."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from pydantic import Field

from cuda_agent.bench.suite import Problem
from cuda_agent.core.config import Configuration, OptimizeOptions, TimingStop
from cuda_agent.core.enums import Device
from cuda_agent.core.errors import UsageError
from cuda_agent.core.stack import read_stack
from cuda_agent.workers.affinity import kept_for_timing

#: a profile's rounds, for hundreds of tasks; `optimize` alone takes 10, and `settled`. What that costs: docs/bench.md.
TIMING_BUDGET_S = 2.0
TIMING_STOP: TimingStop = "decided"
_GIB = 1 << 30
#: of the device, for every task that is open: contexts of its processes.
_CONTEXTS = 3 * _GIB
#: of what an eager call holds: what stays while a task waits (weights, the pool of a captured graph), as long as its
#: judge hasn't said it; on a CPU what is there at most (inputs, answers in float64, copies in several processes).
_IDLE, _MOST = 1.2, 5
#: of the device's memory, for all open tasks while they wait; for them and those who share the device together, more
#: than there is, since few hold at a time what is reserved (with 0.5 and 1.2, half of an H200 was in use in the median,
#: five sixths in 97 of 100 looks), and who finds none tries again alone; and for those who share it at least. The one
#: that is timed has what those who wait leave. With 1.3 three of 81 tasks found none.
_OPEN_SHARE, _USED_SHARE, _LEAST_SHARED = 0.8, 1.15, 0.25
#: what an eager call holds, where nobody has said it.
_USUAL_PEAK = {Device.CUDA: _GIB, Device.CPU: _GIB // 4}
#: host memory of a task's processes.
_HOST = {Device.CUDA: 5 * _GIB, Device.CPU: 3 * _GIB}
#: processes of a task that import torch when it begins, and compilers of its candidate.
_BUSY = 3
#: more wait for the device without using it, and hold its memory; and with every context that lives it takes longer to
#: make another.
_MOST_JOBS = 10


class BenchOptions(Configuration):
    """A run of `cuda-agent bench`; fixed when it is begun."""

    run: OptimizeOptions
    levels: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    limit: int | None = Field(default=None, ge=1)

    def differences(self, other: BenchOptions) -> list[str]:
        """Names of the settings that `other` has otherwise, with its values."""
        return _differences("", self.model_dump(mode="json"), other.model_dump(mode="json"))


def _differences(prefix: str, mine: dict[str, object], theirs: dict[str, object]) -> list[str]:
    found = []
    for key, value in mine.items():
        other = theirs.get(key)
        if isinstance(value, dict) and isinstance(other, dict):
            found += _differences(f"{prefix}{key}.", value, other)
        elif value != other:
            found.append(f"{prefix}{key} {other} instead of {value}")
    return found


def check(options: BenchOptions) -> None:
    """Raises UsageError for what a suite doesn't offer."""
    if options.run.parallel > 1:
        raise UsageError("A benchmark plays one agent on each task", "Leave out --parallel")


def default_jobs(device: Device) -> int:
    """How many tasks are at work at once: on a GPU so many that what they compile side by side takes little of the time
    in which each is timed alone; on the CPU, where each would be the other's foreign load, one for eight cores."""
    cores = len(os.sched_getaffinity(0))
    most = cores if device is Device.CUDA else cores // 8
    return max(1, min(_MOST_JOBS, most, host_bytes() // _HOST[device]))


@contextmanager
def timed_cores(device: Device) -> Iterator[frozenset[int]]:
    """Those that everything but what is timed keeps off. On a CPU nothing goes on beside that."""
    if device is not Device.CUDA:
        yield frozenset()
        return
    with kept_for_timing(os.sched_getaffinity(0)) as kept:
        yield kept


def host_share(kept: frozenset[int]) -> int:
    """How many tasks import and compile at once: so many that each of their processes has a core."""
    return max(1, len(os.sched_getaffinity(0) - kept) // _BUSY)


def open_bytes(problem: Problem, device: Device) -> int:
    """Of the device's memory, for as long as the task is open. On a CPU for everything."""
    peak = problem.peak_bytes or _USUAL_PEAK[device]
    return int(_IDLE * peak) + _CONTEXTS if device is Device.CUDA else _MOST * peak + _HOST[device]


def waiting_bytes(kept_bytes: int, device: Device) -> int | None:
    """`open_bytes` of a task whose judge says that it keeps so much; None where that doesn't count."""
    return kept_bytes + _CONTEXTS if device is Device.CUDA else None


def peak_bytes(problem: Problem, device: Device) -> int:
    """Of the device's memory, that an eager call holds. On a CPU, where `open_bytes` says everything, none."""
    return (problem.peak_bytes or _USUAL_PEAK[device]) if device is Device.CUDA else 0


def open_capacity(device: Device) -> int:
    """Of the device's memory, for all tasks that are open."""
    return int(_OPEN_SHARE * _device_bytes()) if device is Device.CUDA else host_bytes()


def shared_room(in_use: Collection[int], device: Device) -> int | None:
    """Of the device's memory, for those who share it, while open tasks have so many bytes each; None where that doesn't
    count. Their contexts lie there in any case; of what else they keep half is taken to be theirs who have a turn, and
    counted with that."""
    if device is not Device.CUDA:
        return None
    there, contexts = _device_bytes(), len(in_use) * _CONTEXTS
    idle = (sum(in_use) - contexts) // 2
    return max(int(_LEAST_SHARED * there), int(_USED_SHARE * there) - contexts - idle)


def _device_bytes() -> int:
    gpus = read_stack().gpus
    return ((gpus[0].memory_mib if gpus else None) or 16384) << 20


def host_bytes() -> int:
    """Nine tenths of what this machine has left."""
    with open("/proc/meminfo") as stream:
        for line in stream:
            if line.startswith("MemAvailable:"):
                return int(int(line.split()[1]) * 1024 * 0.9)
    return 8 * _GIB
