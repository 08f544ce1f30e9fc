"""The two passes over many tasks: threads that each drive a zygote, and one that writes down what they find."""

from __future__ import annotations

import contextlib
import math
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
from cuda_agent.tasks.filter.check import Room, check
from cuda_agent.tasks.filter.memory import Memory
from cuda_agent.tasks.filter.options import FilterOptions
from cuda_agent.tasks.filter.processes import Processes
from cuda_agent.tasks.filter.records import Checked, Failure, failed
from cuda_agent.tasks.filter.timing import Disturbed, Turns, time_task
from cuda_agent.tasks.inside import TASK_CHECK
from cuda_agent.tasks.records import DatasetTask, Measurement
from cuda_agent.workers.folder import judge_folder
from cuda_agent.workers.process import WorkerSettings, memory_limit_mib
from cuda_agent.workers.roles import ZYGOTE
from cuda_agent.workers.supply import WorkerSupply
from cuda_agent.workers.zygote import Zygote
from cuda_agent.workspace.sandbox import resolve_level

#: what ran out of time or memory beside others is tried again with this part of them, and at last alone.
_SHARE = 4
#: the zygote itself, and what a watcher counts of it again in each fork.
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
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stack.close()

    @property
    def over(self) -> bool:
        """Whether its time is over."""
        return self.left_s <= 0

    @property
    def left_s(self) -> float:
        """Seconds in which tasks may still be begun."""
        return math.inf if self._until is None else self._until - time.monotonic()

    # ------------------------------------------------------------ pass 1

    def check_all(
        self, tasks: Sequence[DatasetTask], enough: Callable[[], bool] = lambda: False
    ) -> Iterator[Checked | Measurement | Unfit]:
        """Every task's result, in any order, of as many as there is time for; Unfit what should be asked again. None is
        begun once there are `enough`."""
        yield from self._check_beside(tasks, self._options.worker_count(), self._options.tasks_a_process, enough)

    def check_again(self, tasks: Sequence[DatasetTask]) -> Iterator[Checked | Measurement]:
        """What failed beside others for lack of time or memory, with fewer of them, at last alone, so that nobody's
        finding depends on its neighbours."""
        count = self._options.worker_count()
        left = list(tasks)
        for at_a_time in (count // _SHARE, 1) if count >= 2 * _SHARE else (1,):
            if not left or self.over:
                return
            self._say(f"{len(left)} tasks ran short of time or memory; again, {at_a_time} at a time")
            unfit: list[DatasetTask] = []
            for result in self._check_beside(left, at_a_time, 1):
                if isinstance(result, Unfit):
                    unfit.append(result.task)
                else:
                    yield result
            left = unfit

    def _check_beside(
        self,
        tasks: Sequence[DatasetTask],
        at_a_time: int,
        a_process: int,
        enough: Callable[[], bool] = lambda: False,
    ) -> Iterator[Checked | Measurement | Unfit]:
        """With so many at a time, and so many in a row in one process; what fails alone fails."""
        for result in self._run(tasks, at_a_time, self._checker(at_a_time), a_process, enough):
            if isinstance(result, Unfit) and at_a_time == 1:
                yield failed(result.task.task.key, result.failure)
            else:
                yield result

    def _checker(self, at_a_time: int) -> Callable[[Processes, DatasetTask], Checked | Measurement | Unfit]:
        options = self._fitting_options(at_a_time)
        room = Room(_device_bytes(options), max(1, len(os.sched_getaffinity(0)) // at_a_time), sleeps=True)
        memory = Memory(options.device, room.device_bytes)

        def run(processes: Processes, task: DatasetTask) -> Checked | Measurement | Unfit:
            try:
                return check(processes, task, options, room, memory)
            except Failure as failure:
                return Unfit(task, failure) if failure.scarce else failed(task.task.key, failure)

        return run

    # ------------------------------------------------------------ pass 2

    def time_all(self, tasks: Sequence[tuple[DatasetTask, Checked]]) -> Iterator[Measurement | Void]:
        """Every task's result, in any order. Raises DeviceError."""
        options = self._fitting_options(self._options.lane_count())
        turns = Turns(options.device, self._say)
        room = Room(_device_bytes(options), len(os.sched_getaffinity(0)) if options.device is Device.CPU else 2)

        def run(processes: Processes, item: tuple[DatasetTask, Checked]) -> Measurement | Void:
            task, checked = item
            reason = ""
            for _ in range(_MOST_VOID):
                try:
                    return time_task(processes, task, checked, turns, options, room)
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
        enough: Callable[[], bool] = lambda: False,
        *,
        warm: bool = True,
    ) -> Iterator[Result]:
        """What `job` returns for every item, as it comes, of as many as there is time for. Raises what it raises.
        `a_process`: so many items may follow each other in one. None is begun when its time is over or there are
        `enough`."""
        waiting: queue.SimpleQueue[Item] = queue.SimpleQueue()
        for item in items:
            waiting.put(item)
        results: queue.SimpleQueue[tuple[Result | None, BaseException | None]] = queue.SimpleQueue()
        supply = self._supply(at_a_time)
        zygotes = [
            Zygote(lambda: supply.start(ZYGOTE), serves=TASK_CHECK, warm=warm)
            for _ in range(min(at_a_time, len(items)))
        ]

        def stops() -> bool:
            return self.over or enough()

        threads = [
            threading.Thread(target=_drive, args=(zygote, a_process, waiting, job, results, stops), daemon=True)
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
