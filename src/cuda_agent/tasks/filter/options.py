"""How candidates are filtered."""

from __future__ import annotations

import os
from typing import Annotated

from pydantic import AfterValidator, Field

from cuda_agent.core.config import Configuration, DeviceSetting, Flag, SandboxSetting
from cuda_agent.core.enums import Device, Precision

#: what pass 2 prepares at a time on a GPU, so that it never waits for a process to start.
_LANES = 6


def _ordered(value: tuple[float, float]) -> tuple[float, float]:
    if not 0 <= value[0] < value[1]:
        raise ValueError("give LOW and HIGH with LOW < HIGH")
    return value


WindowSetting = Annotated[
    tuple[float, float],
    AfterValidator(_ordered),
    Flag("Eager times that are kept (compose: predicted).", "--window-ms", "LOW HIGH"),
]


class FilterSettings(Configuration):
    """How candidates are filtered, on any device. Times in seconds and milliseconds, memory in MiB."""

    #: None: on the CPU half of the cores.
    workers: Annotated[int | None, Flag("Tasks checked at a time; else one for a core.")] = Field(default=None, ge=1)
    #: tasks that are made ready for timing at a time.
    lanes: int | None = Field(default=None, ge=1)
    #: more than one only for tasks that are trusted not to speak for those after them: the built-in composer's.
    tasks_a_process: Annotated[int, Flag("Tasks in one process, if trusted.", metavar="N")] = Field(default=1, ge=1)
    limit_s: Annotated[float, Flag("Most time of a task in a pass.", metavar="SECONDS")] = Field(default=90.0, gt=0)
    memory_mib: Annotated[int, Flag("Most of an eager call, weights and inputs too.")] = Field(default=32768, ge=1)
    #: of the host, for each task's processes together.
    host_memory_mib: int = Field(default=16384, gt=0)
    window_ms: WindowSetting = (1.0, 100.0)
    warm_calls: int = Field(default=3, ge=1)
    #: fewest timed calls, from six on with a 95 % interval of their median; a short task gets more.
    calls: int = Field(default=6, ge=5)
    sandbox: SandboxSetting = "auto"


class FilterOptions(FilterSettings):
    """How candidates are filtered on a device."""

    device: DeviceSetting

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


class FilterRunOptions(FilterOptions):
    """A run of `cuda-agent tasks filter`."""

    limit: Annotated[int | None, Flag("Most candidates to ask in this run.")] = Field(default=None, ge=1)
    stop_after_s: Annotated[float | None, Flag("Begin no more tasks after so long.", metavar="SECONDS")] = Field(
        default=None, ge=1
    )
    shard: Annotated[str | None, Flag("Only this part of the candidates; see `tasks merge`.", metavar="I/N")] = None
