"""The processes in which a thread's tasks are asked: one for each, or one for several in a row."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from cuda_agent.tasks.filter.records import Failure
from cuda_agent.workers.zygote import Fork, Zygote

Result = TypeVar("Result")


@dataclass(frozen=True)
class Seat:
    """A task's place in a process. `alone`: no other was before it. `goes_on`: another may come after it. `seconds`:
    until the process began."""

    fork: Fork
    alone: bool
    goes_on: bool
    seconds: float


class Processes:
    """Starting CUDA in a process takes longer than most of a task's checks, and a GPU's driver does it for one process
    at a time. So `most` tasks may follow each other in one process. There a task can only be found to keep the rules:
    whatever fails is asked again in a process of its own, since those before it may have been the cause."""

    def __init__(self, zygote: Zygote, most: int) -> None:
        self._zygote, self._most = zygote, most
        self._fork: Fork | None = None
        self._served = 0

    def ask(self, job: Callable[[Seat], Result]) -> Result:
        """Raises what `job` raises in a process in which no other task was, and WorkerError."""
        if self._fork is not None:
            try:
                return self._seated(self._fork, job, 0.0)
            except Failure:
                pass
        begun = time.monotonic()
        fork = self._zygote.fork()
        return self._seated(fork, job, time.monotonic() - begun)

    def _seated(self, fork: Fork, job: Callable[[Seat], Result], seconds: float) -> Result:
        served = self._served + 1 if fork is self._fork else 1
        self._fork = None
        try:
            result = job(Seat(fork, served == 1, served < self._most, seconds))
        except BaseException:
            fork.end()
            raise
        if served < self._most and not fork.ended:
            self._fork, self._served = fork, served
        else:
            fork.end()
        return result
