"""What a benchmark run is asked to do, and how many tasks are at work at once."""

from __future__ import annotations

import os
from typing import Annotated

from pydantic import Field

from cuda_agent.core.config import Configuration, Flag, OptimizeOptions
from cuda_agent.core.differences import differing
from cuda_agent.core.enums import Device
from cuda_agent.core.errors import UsageError

#: of a run's judge, for hundreds of tasks. What that costs: docs/bench.md.
DEFAULTS = {"run": {"judge": {"timing_budget_s": 2.0, "timing_stop": "decided"}}}
_GIB = 1 << 30
#: host memory of a task's processes.
_HOST = {Device.CUDA: 5 * _GIB, Device.CPU: 3 * _GIB}
#: more wait for the device without using it, and hold its memory; and with every context that lives it takes longer to
#: make another.
_MOST_JOBS = 10


class BenchOptions(Configuration):
    """A run of `cuda-agent bench`; fixed when it is begun."""

    run: OptimizeOptions
    levels: Annotated[tuple[str, ...], Flag("Only these levels.", metavar="1,2", separator=",")] = ()
    ids: Annotated[
        tuple[str, ...], Flag("Only these: file names, their numbers, patterns.", metavar="ID,…", separator=",")
    ] = ()
    limit: Annotated[int | None, Flag("Only the first so many.")] = Field(default=None, ge=1)
    #: this and the next may differ when a run goes on, so they aren't saved.
    jobs: Annotated[int | None, Flag("Tasks at work at once; one is timed at a time.")] = Field(
        default=None, ge=1, exclude=True
    )
    stop_after_s: Annotated[float | None, Flag("Stop then; --resume goes on.", "--stop-after", "SECONDS")] = Field(
        default=None, ge=1, exclude=True
    )

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
