"""The options of a benchmark run, and the default number of parallel tasks."""

from __future__ import annotations

import os

from pydantic import Field

from cuda_agent.core.config import Configuration, OptimizeOptions, TimingStop
from cuda_agent.core.differences import differing
from cuda_agent.core.enums import Device
from cuda_agent.core.errors import UsageError

#: The options of timing for hundreds of tasks; `optimize` uses 10 s and `settled`. docs/bench.md has the cost in
#: accuracy.
TIMING_BUDGET_S = 2.0
TIMING_STOP: TimingStop = "decided"
_GIB = 1 << 30
#: The host memory of a task's processes.
_HOST = {Device.CUDA: 5 * _GIB, Device.CPU: 3 * _GIB}
#: More tasks would only wait for the device while they hold its memory, and each context makes the next one slower to
#: create.
_MOST_JOBS = 10


class BenchOptions(Configuration):
    """The options of `cuda-agent bench`, which don't change after its start."""

    run: OptimizeOptions
    levels: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    limit: int | None = Field(default=None, ge=1)

    def differences(self, other: BenchOptions) -> list[str]:
        """Returns the names of the settings that differ in `other`, with its values."""
        found = differing(self.model_dump(mode="json"), other.model_dump(mode="json"))
        return [f"{name} {theirs} instead of {mine}" for name, (mine, theirs) in found.items()]


def check(options: BenchOptions) -> None:
    """Raises UsageError for options that a suite doesn't have."""
    if options.run.parallel > 1:
        raise UsageError("A benchmark plays one agent on each task", "Omit --parallel")


def default_jobs(device: Device) -> int:
    """Returns how many tasks run at once. On a GPU the limit keeps the time for compiling side by side short against
    that in which each task is timed alone. On the CPU, where the tasks disturb each other, there is one for eight
    cores."""
    cores = len(os.sched_getaffinity(0))
    most = cores if device is Device.CUDA else cores // 8
    return max(1, min(_MOST_JOBS, most, host_bytes() // _HOST[device]))


def host_bytes() -> int:
    """Returns nine tenths of this machine's available memory."""
    with open("/proc/meminfo") as stream:
        for line in stream:
            if line.startswith("MemAvailable:"):
                return int(int(line.split()[1]) * 1024 * 0.9)
    return 8 * _GIB
