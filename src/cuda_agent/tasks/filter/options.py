"""The filter's options."""

from __future__ import annotations

import os
from typing import Literal

from pydantic import Field

from cuda_agent.core.config import Configuration
from cuda_agent.core.enums import Device, Precision

#: The processes that are prepared for timing at a time on a GPU, so that timing never waits for a process to start.
_LANES = 6


class FilterOptions(Configuration):
    """The filter's options. Times are in seconds and microseconds, memory in MiB."""

    device: Device
    #: Tasks that are checked at a time; None is one for each core (on the CPU half as many).
    workers: int | None = Field(default=None, ge=1)
    #: Tasks that are prepared for timing at a time.
    lanes: int | None = Field(default=None, ge=1)
    #: Tasks that may follow each other in one process, as long as each passes every rule. More than one is only for
    #: trusted tasks, such as those of the built-in composer, because a task could forge the results of later ones.
    tasks_a_process: int = Field(default=1, ge=1)
    #: The time of one task in each pass.
    limit_s: float = Field(default=90.0, gt=0)
    #: The most device memory of one eager call, weights and inputs included.
    memory_mib: int = Field(default=32768, gt=0)
    #: The host memory of each task's processes together.
    host_memory_mib: int = Field(default=16384, gt=0)
    #: Eager times outside this window break a rule.
    low_us: float = Field(default=1_000.0, ge=0)
    high_us: float = Field(default=100_000.0, gt=0)
    warm_calls: int = Field(default=3, ge=1)
    #: The least number of timed calls; six give a 95 % interval of their median. A short task gets more.
    calls: int = Field(default=6, ge=5)
    sandbox: Literal["auto", "full", "reduced"] = "auto"

    @property
    def precision(self) -> Precision:
        """The precision at which the judge admits tasks by default."""
        return Precision.TF32

    def worker_count(self) -> int:
        cores = len(os.sched_getaffinity(0))
        return self.workers or max(1, cores if self.device is Device.CUDA else cores // 2)

    def lane_count(self) -> int:
        """Returns the number of tasks to prepare at a time. It is 1 on the CPU, where another process would disturb the
        timing."""
        if self.lanes is not None:
            return self.lanes
        return max(1, min(_LANES, len(os.sched_getaffinity(0)) // 2)) if self.device is Device.CUDA else 1
