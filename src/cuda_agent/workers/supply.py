"""The workers of a session, which are started ahead and ended together."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

from cuda_agent.core.errors import WorkerError
from cuda_agent.workers.process import Worker, WorkerSettings
from cuda_agent.workers.roles import CANDIDATE, Role

#: with this many cores, a worker that may not be needed disturbs nothing.
_MANY_CORES = 8


class WorkerSupply:
    """Starts a spare candidate worker ahead, so that torch is imported when a candidate comes. With many cores it also
    keeps one for screenings, since a verdict mostly follows a screening. A verdict's worker serves one candidate."""

    def __init__(self, settings: WorkerSettings, directory: Path) -> None:
        self.settings = settings
        self._directory = directory
        self._count = 0
        #: the next candidate's worker.
        self.spare: Worker | None = None
        self._for_screenings: Worker | None = None
        self._screens = False
        self._all: list[Worker] = []
        self._lock = threading.Lock()
        self._closed = False

    def start(self, role: Role, writable: tuple[Path, ...] = (), *, small_context: bool = False) -> Worker:
        """Returns a new worker, which still imports. May be called from any thread."""
        with self._lock:
            if self._closed:
                raise WorkerError("The judge is closing", "Run again")
            self._forget_ended()
            self._count += 1
            directory = self._directory / f"{role.name}-{self._count}"
            worker = Worker(role, self.settings, directory, writable, small_context=small_context)
            self._all.append(worker)
        return worker

    def _forget_ended(self) -> None:
        """Drops ended workers and their files, since a session lives long."""
        for worker in self._all:
            if worker.ended:
                shutil.rmtree(worker.directory, ignore_errors=True)
        self._all = [worker for worker in self._all if not worker.ended]

    def prewarm(self) -> None:
        """Starts the next candidate's worker."""
        if self.spare is None or not self.spare.alive:
            self.spare = self.start(CANDIDATE)

    def prewarm_screenings(self) -> None:
        """Starts the first worker for screenings, if there are many cores."""
        if not self._screens and len(os.sched_getaffinity(0)) >= _MANY_CORES:
            self._screens = True
            self._for_screenings = self.start(CANDIDATE, small_context=True)

    def rouse(self) -> None:
        """Makes the spare worker start its device, while the candidate is still compiled."""
        if self.spare is not None:
            self.spare.begin()

    def settle(self) -> None:
        """Waits until the spare worker has started its device, if `rouse` was called."""
        if self.spare is not None:
            self.spare.settle()

    @property
    def next_screener(self) -> Worker | None:
        """The worker that `screener` would return, if it lives."""
        return self._for_screenings or self.spare

    def candidate(self) -> Worker:
        """Returns the spare worker or a new one. The caller ends it."""
        worker, self.spare = self.spare, None
        return worker if worker is not None and worker.alive else self.start(CANDIDATE)

    def screener(self) -> Worker:
        """Returns a worker for screenings. The caller ends it."""
        worker, self._for_screenings = self._for_screenings, None
        return worker if worker is not None and worker.alive else self.candidate()

    def close(self) -> None:
        """Ends all workers. No more can be started."""
        with self._lock:
            self._closed = True
            # All end at the same time, since a driver takes a third of a second to destroy a context.
            for worker in self._all:
                worker.doom()
            for worker in self._all:
                worker.kill()
            self._all.clear()
        self.spare = self._for_screenings = None
