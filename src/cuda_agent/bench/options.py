"""The options of a benchmark run, and the default number of parallel tasks."""

import os
from typing import Annotated

from pydantic import Field

from cuda_agent.core.config import Configuration, Flag, OptimizeOptions
from cuda_agent.core.enums import Device
from cuda_agent.core.settings import differing
from cuda_agent.core.stack import available_memory

#: Timing options for hundreds of tasks; `optimize` uses 10 s and `settled`. docs/bench.md has the cost in accuracy.
DEFAULTS = {"run": {"judge": {"timing_budget_s": 2.0, "timing_stop": "decided"}}}
_GIB = 1 << 30
#: The host memory of a task's processes.
_HOST = {Device.CUDA: 5 * _GIB, Device.CPU: 3 * _GIB}
#: More tasks would only wait for the device while they hold its memory, and each context makes the next one slower to
#: create.
_MOST_JOBS = 10


class BenchOptions(Configuration):
    """The options of `cuda-agent bench`, which don't change after its start."""

    run: OptimizeOptions
    levels: Annotated[tuple[str, ...], Flag("Only these levels.", metavar="1,2", separator=",")] = ()
    ids: Annotated[
        tuple[str, ...], Flag("Only these tasks: file names, numbers, patterns.", metavar="ID,…", separator=",")
    ] = ()
    limit: Annotated[int | None, Flag("Only this number of tasks.")] = Field(default=None, ge=1)
    #: `jobs` and `stop_after_s` may differ when a run is resumed, so they aren't saved.
    jobs: Annotated[int | None, Flag("Number of tasks that run at once; one is timed at a time.")] = Field(
        default=None, ge=1, exclude=True
    )
    stop_after_s: Annotated[float | None, Flag("Stop then; --resume continues.", "--stop-after", "SECONDS")] = Field(
        default=None, ge=1, exclude=True
    )

    def differences(self, other: "BenchOptions") -> list[str]:
        """Returns the names of the settings that differ in `other`, with its values."""
        found = differing(self.model_dump(mode="json"), other.model_dump(mode="json"))
        return [f"{name} {theirs} instead of {mine}" for name, (mine, theirs) in found.items()]


def default_jobs(device: Device) -> int:
    """Returns how many tasks run at once. On a GPU the limit keeps the time for compiling side by side short against
    that in which each task is timed alone. On the CPU, where the tasks disturb each other, there is one for eight
    cores."""
    cores = len(os.sched_getaffinity(0))
    most = cores if device is Device.CUDA else cores // 8
    free = available_memory()
    room = 8 * _GIB if free is None else int(free * 0.9)
    return max(1, min(_MOST_JOBS, most, room // _HOST[device]))
