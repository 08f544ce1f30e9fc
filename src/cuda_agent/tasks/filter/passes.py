"""The two passes over many tasks. Each thread drives a zygote and asks the device's queue for turns."""

from __future__ import annotations

import contextlib
import os
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from cuda_agent.core import bytecode
from cuda_agent.core.enums import Device
from cuda_agent.core.errors import WorkerError
from cuda_agent.core.files import cache_dir
from cuda_agent.judge import device_facts
from cuda_agent.pool.client import DeviceQueue
from cuda_agent.pool.rule import QueueRule
from cuda_agent.pool.server import QueueServer
from cuda_agent.tasks.filter.check import Room, check
from cuda_agent.tasks.filter.options import FilterOptions
from cuda_agent.tasks.filter.processes import Processes
from cuda_agent.tasks.filter.records import Checked, Failure, failed
from cuda_agent.tasks.filter.timing import Disturbed, TimingTurns, time_task
from cuda_agent.tasks.inside import TASK_CHECK
from cuda_agent.tasks.records import DatasetTask, Measurement
from cuda_agent.workers.folder import judge_folder
from cuda_agent.workers.process import WorkerSettings, memory_limit_mib
from cuda_agent.workers.roles import ZYGOTE
from cuda_agent.workers.supply import WorkerSupply
from cuda_agent.workers.zygote import Zygote
from cuda_agent.workspace.sandbox import resolve_level

#: host memory of a zygote, and what a watcher counts of it again in each fork.
_ZYGOTE_MIB = 3072
#: times of one task that may be void before it is left for another run.
_MOST_VOID = 3
#: what is in flight may take so long when the time is over.
_GRACE_S = 10.0
_LOST_IN_A_ROW = 5

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Unfit:
    """A failure that may be the neighbours' fault."""

    task: DatasetTask
    failure: Failure


@dataclass(frozen=True)
class Void:
    """A task whose times were disturbed again and again."""

    task: DatasetTask
    reason: str


class Passes:
    """A context manager; nothing of what it started is left after it."""

    def __init__(self, options: FilterOptions, say: Callable[[str], None], until: float | None = None) -> None:
        """`until`: when no more tasks are begun, on the monotonic clock."""
        self._options, self._say, self._until = options, say, until
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Passes:
        compiling = bytecode.fill()
        if compiling is not None:
            self._say("compiling torch's Python once")
            try:
                compiling.wait()
            finally:
                compiling.kill()
        self._level = resolve_level(self._options.sandbox)
        self._folder = self._stack.enter_context(judge_folder())
        rule = QueueRule(_device_bytes(self._options))
        self._queue = self._stack.enter_context(QueueServer(Path(self._folder) / "queue.sock", rule)).address
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stack.close()

    @property
    def over(self) -> bool:
        """Whether its time is over, so that no more tasks are begun."""
        return self._until is not None and time.monotonic() >= self._until

    # ------------------------------------------------------------ pass 1

    def check_all(
        self, tasks: Sequence[DatasetTask], *, alone: bool = False
    ) -> Iterator[Checked | Measurement | Unfit]:
        """Yields each task's result, in any order, for as many as there is time for. A task is Unfit where it ran short
        of time or memory beside others; `alone`, one task at a time, it has failed then."""
        at_a_time = 1 if alone else self._options.worker_count()
        options = self._fitting_options(at_a_time)
        room = Room(_device_bytes(options), max(1, len(os.sched_getaffinity(0)) // at_a_time), sleeps=True)

        def run(processes: Processes, task: DatasetTask) -> Checked | Measurement | Unfit:
            try:
                return check(processes, task, options, room, self._queue_of(task))
            except Failure as failure:
                return Unfit(task, failure) if failure.scarce and at_a_time > 1 else failed(task.task.key, failure)

        yield from self._run(tasks, at_a_time, run, 1 if alone else options.tasks_a_process)

    def _queue_of(self, task: DatasetTask) -> DeviceQueue:
        return DeviceQueue(self._queue, task.task.key, rank=task.number)

    # ------------------------------------------------------------ pass 2

    def time_all(self, tasks: Sequence[tuple[DatasetTask, Checked]]) -> Iterator[Measurement | Void]:
        """Yields each task's result, in any order. Raises DeviceError."""
        options = self._fitting_options(self._options.lane_count())
        turns = TimingTurns(options.device, self._say)
        room = Room(_device_bytes(options), len(os.sched_getaffinity(0)) if options.device is Device.CPU else 2)

        def run(processes: Processes, item: tuple[DatasetTask, Checked]) -> Measurement | Void:
            task, checked = item
            reason = ""
            for _ in range(_MOST_VOID):
                try:
                    return time_task(processes, task, checked, options, room, turns, self._queue_of(task))
                except Failure as failure:
                    return failed(task.task.key, failure, checked)
                except Disturbed as error:
                    reason = str(error)
            return Void(task, reason)

        try:
            yield from self._run(tasks, options.lane_count(), run, options.tasks_a_process, warm=False)
        finally:
            turns.close()

    # ------------------------------------------------------------ both

    def _memory_mib(self, at_a_time: int) -> int:
        """Of the host, for a zygote and its fork together, of so many: no more than there is."""
        most = memory_limit_mib(1 << 40) // at_a_time
        return max(2 * _ZYGOTE_MIB, min(self._options.host_memory_mib + _ZYGOTE_MIB, most))

    def _fitting_options(self, at_a_time: int) -> FilterOptions:
        return self._options.model_copy(update={"host_memory_mib": self._memory_mib(at_a_time) - _ZYGOTE_MIB})

    def _supply(self, at_a_time: int) -> WorkerSupply:
        hidden = tuple(path for path in (Path.cwd(), cache_dir()) if len(path.resolve().parts) > 1)
        settings = WorkerSettings(self._options.device, self._level, self._memory_mib(at_a_time), hidden)
        return WorkerSupply(settings, Path(tempfile.mkdtemp(dir=self._folder)))

    def _patience(self) -> float | None:
        """Seconds for which a result is waited for."""
        return None if self._until is None else max(0.1, self._until + _GRACE_S - time.monotonic())

    def _run(
        self,
        items: Sequence[Item],
        at_a_time: int,
        job: Callable[[Processes, Item], Result],
        a_process: int,
        *,
        warm: bool = True,
    ) -> Iterator[Result]:
        """Yields what `job` returns for every item, as it comes, for as many as there is time for. Raises what `job`
        raises. `a_process`: items that may follow each other in one process."""
        waiting: queue.SimpleQueue[Item] = queue.SimpleQueue()
        for item in items:
            waiting.put(item)
        results: queue.SimpleQueue[tuple[Result | None, BaseException | None]] = queue.SimpleQueue()
        supply = self._supply(at_a_time)
        zygotes = [
            Zygote(lambda: supply.start(ZYGOTE), serves=TASK_CHECK, warm=warm)
            for _ in range(min(at_a_time, len(items)))
        ]

        threads = [
            threading.Thread(
                target=_drive, args=(zygote, a_process, waiting, job, results, lambda: self.over), daemon=True
            )
            for zygote in zygotes
        ]
        try:
            for thread in threads:
                thread.start()
            decided, running = 0, len(threads)
            while decided < len(items) and running:
                try:
                    result, error = results.get(timeout=self._patience())
                except queue.Empty:
                    self._say("time is over; what is in flight is asked again in the next run")
                    return
                if error is not None:
                    raise error
                if result is None:
                    running -= 1
                    continue
                decided += 1
                yield result
        finally:
            with contextlib.suppress(queue.Empty):
                while True:
                    waiting.get_nowait()
            for zygote in zygotes:
                zygote.close()
            supply.close()
            for thread in threads:
                thread.join()


def _drive(
    zygote: Zygote,
    a_process: int,
    waiting: queue.SimpleQueue[Item],
    job: Callable[[Processes, Item], Result],
    results: queue.SimpleQueue[tuple[Result | None, BaseException | None]],
    stops: Callable[[], bool],
) -> None:
    """One thread: takes items until none is left or it `stops`, and says so with an empty result. A zygote that
    dies is started again; one that doesn't start any more ends the run."""
    lost = 0
    processes = Processes(zygote, a_process)
    while True:
        try:
            item = waiting.get_nowait()
        except queue.Empty:
            item = None
        if item is None or stops():
            results.put((None, None))
            return
        while True:
            try:
                results.put((job(processes, item), None))
                lost = 0
                break
            except WorkerError as error:
                lost += 1
                if lost < _LOST_IN_A_ROW and not zygote.closed:
                    continue
                results.put((None, error))
                return
            except BaseException as error:  # noqa: BLE001 - the boundary of a thread: whoever waits must hear of it
                results.put((None, error))
                return


def _device_bytes(options: FilterOptions) -> int:
    """What a process may take of the device: all that is free now but a tenth."""
    return int(0.9 * device_facts(options.device)[1])
