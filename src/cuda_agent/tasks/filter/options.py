"""The filter's options."""

import os
from typing import Annotated

from pydantic import AfterValidator, Field

from cuda_agent.core.config import Configuration, DeviceSetting, Flag, SandboxSetting
from cuda_agent.core.enums import Device

#: The processes that are prepared for timing at a time on a GPU, so that timing never waits for a process to start.
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
    """The filter's options on any device. Times are in seconds and milliseconds, memory in MiB."""

    #: None is one for each core (on the CPU half as many).
    workers: Annotated[int | None, Flag("Tasks checked at a time; default: one a core.")] = Field(default=None, ge=1)
    #: Tasks that are prepared for timing at a time.
    lanes: int | None = Field(default=None, ge=1)
    #: More than one is only for trusted tasks, since a task could forge the results of later ones.
    tasks_a_process: Annotated[int, Flag("Trusted tasks that share one process.", metavar="N")] = Field(default=1, ge=1)
    limit_s: Annotated[float, Flag("Maximum time of a task in a pass.", metavar="SECONDS")] = Field(default=90.0, gt=0)
    memory_mib: Annotated[int, Flag("Maximum memory of an eager call, weights included.")] = Field(default=32768, ge=1)
    #: The host memory of each task's processes together.
    host_memory_mib: int = Field(default=16384, gt=0)
    window_ms: WindowSetting = (1.0, 100.0)
    warm_calls: int = Field(default=3, ge=1)
    #: The least number of timed calls; six give a 95 % interval of their median. A short task gets more.
    calls: int = Field(default=6, ge=5)
    sandbox: SandboxSetting = "auto"


class FilterOptions(FilterSettings):
    """The filter's options on a device."""

    device: DeviceSetting

    def worker_count(self) -> int:
        cores = len(os.sched_getaffinity(0))
        return self.workers or max(1, cores if self.device is Device.CUDA else cores // 2)

    def lane_count(self) -> int:
        """Returns the number of tasks to prepare at a time. It is 1 on the CPU, where another process would disturb the
        timing."""
        if self.lanes is not None:
            return self.lanes
        return max(1, min(_LANES, len(os.sched_getaffinity(0)) // 2)) if self.device is Device.CUDA else 1


class FilterRunOptions(FilterOptions):
    """The options of `cuda-agent tasks filter`."""

    limit: Annotated[int | None, Flag("Maximum candidates to check in this run.")] = Field(default=None, ge=1)
    stop_after_s: Annotated[float | None, Flag("Begin no more tasks after this time.", metavar="SECONDS")] = Field(
        default=None, ge=1
    )
    shard: Annotated[str | None, Flag("Only part I of N of the candidates; see `tasks merge`.", metavar="I/N")] = None
