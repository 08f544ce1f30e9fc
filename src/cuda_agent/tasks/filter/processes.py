"""The processes of a thread's tasks: one for each task, or one for several tasks in a row."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from cuda_agent.tasks.filter.records import Failure
from cuda_agent.workers.process import Worker

Result = TypeVar("Result")


@dataclass(frozen=True)
class ProcessSlot:
    """A task's place in a process. `alone` means that no task was before it, and `reusable` that another may follow.
    `seconds` is the time until the process began."""

    worker: Worker
    alone: bool
    reusable: bool
    seconds: float


class Processes:
    """Runs tasks in processes, at most `most` tasks in each. Starting CUDA in a process takes longer than most of a
    task's checks, and a GPU's driver does it for one process at a time. In a shared process a task can only pass: a
    task that fails is repeated in its own process, because an earlier task may have caused the failure. A failure from
    shortage is repeated only with `repeats_scarce`."""

    def __init__(self, start: Callable[[], Worker], most: int, *, repeats_scarce: bool = True) -> None:
        self._start, self._most, self._repeats_scarce = start, most, repeats_scarce
        self._worker: Worker | None = None
        self._served = 0

    def ask(self, job: Callable[[ProcessSlot], Result]) -> Result:
        """Returns the result of `job`. Raises WorkerError, and what `job` raises in a process without an earlier
        task."""
        if self._worker is not None:
            try:
                return self._run_in(self._worker, job, 0.0)
            except Failure as failure:
                if failure.scarce and not self._repeats_scarce:
                    raise
        begun = time.monotonic()
        worker = self._start()
        worker.ready()
        return self._run_in(worker, job, time.monotonic() - begun)

    def _run_in(self, worker: Worker, job: Callable[[ProcessSlot], Result], seconds: float) -> Result:
        served = self._served + 1 if worker is self._worker else 1
        self._worker = None
        try:
            result = job(ProcessSlot(worker, served == 1, served < self._most, seconds))
        except BaseException:
            worker.kill()
            raise
        if served < self._most and not worker.ended:
            self._worker, self._served = worker, served
        else:
            worker.kill()
        return result
