"""How candidates are filtered."""

from __future__ import annotations

import os
from typing import Literal

from pydantic import Field

from cuda_agent.core.config import Configuration
from cuda_agent.core.enums import Device, Precision

#: what pass 2 prepares at a time on a GPU, so that it never waits for a process to start.
_LANES = 6


class FilterOptions(Configuration):
    """Times in seconds and microseconds, memory in MiB."""

    device: Device
    #: tasks that are checked at a time; None: as many as there are cores (on the CPU half of them).
    workers: int | None = Field(default=None, ge=1)
    #: tasks that are made ready for timing at a time.
    lanes: int | None = Field(default=None, ge=1)
    #: tasks that may follow each other in one process, as long as each keeps every rule. More than one only for tasks
    #: that are trusted not to speak for those after them: the built-in composer's.
    tasks_a_process: int = Field(default=1, ge=1)
    #: what one task may take in either pass.
    limit_s: float = Field(default=90.0, gt=0)
    #: most that one eager call may hold of the device's memory, weights and inputs included.
    memory_mib: int = Field(default=32768, gt=0)
    #: of the host, for each task's processes together.
    host_memory_mib: int = Field(default=16384, gt=0)
    #: eager times outside of these break a rule.
    low_us: float = Field(default=1_000.0, ge=0)
    high_us: float = Field(default=100_000.0, gt=0)
    warm_calls: int = Field(default=3, ge=1)
    #: fewest timed calls, from six on with a 95 % interval of their median; a short task gets more.
    calls: int = Field(default=6, ge=5)
    sandbox: Literal["auto", "full", "reduced"] = "auto"

    @property
    def precision(self) -> Precision:
        """At which the judge admits tasks by default."""
        return Precision.TF32

    def worker_count(self) -> int:
        cores = len(os.sched_getaffinity(0))
        return self.workers or max(1, cores if self.device is Device.CUDA else cores // 2)

    def lane_count(self) -> int:
        """On the CPU one: whatever else runs there is in the time."""
        if self.lanes is not None:
            return self.lanes
        return max(1, min(_LANES, len(os.sched_getaffinity(0)) // 2)) if self.device is Device.CUDA else 1
