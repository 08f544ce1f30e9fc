"""What a benchmark run is asked to do, and how many tasks are at work at once."""

from __future__ import annotations

import os

from pydantic import Field

from cuda_agent.core.config import Configuration, OptimizeOptions, TimingStop
from cuda_agent.core.differences import differing
from cuda_agent.core.enums import Device
from cuda_agent.core.errors import UsageError

#: a profile's rounds, for hundreds of tasks; `optimize` alone takes 10, and `settled`. What that costs: docs/bench.md.
TIMING_BUDGET_S = 2.0
TIMING_STOP: TimingStop = "decided"
_GIB = 1 << 30
#: host memory of a task's processes.
_HOST = {Device.CUDA: 5 * _GIB, Device.CPU: 3 * _GIB}
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
        found = differing(self.model_dump(mode="json"), other.model_dump(mode="json"))
        return [f"{name} {theirs} instead of {mine}" for name, (mine, theirs) in found.items()]


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


def host_bytes() -> int:
    """Nine tenths of what this machine has left."""
    with open("/proc/meminfo") as stream:
        for line in stream:
            if line.startswith("MemAvailable:"):
                return int(int(line.split()[1]) * 1024 * 0.9)
    return 8 * _GIB
