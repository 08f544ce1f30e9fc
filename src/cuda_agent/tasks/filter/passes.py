"""The two passes over many tasks. Each thread drives one process at a time and asks the device's queue for turns."""

import contextlib
import os
import queue
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

from cuda_agent.core import bytecode
from cuda_agent.core.enums import Device
from cuda_agent.judge import device_facts
from cuda_agent.pool.client import DeviceQueue
from cuda_agent.pool.rule import QueueRule
from cuda_agent.pool.server import QueueServer
from cuda_agent.tasks.captured import CHECKER, task_supply
from cuda_agent.tasks.filter.check import ProcessLimits, check
from cuda_agent.tasks.filter.options import FilterOptions
from cuda_agent.tasks.filter.processes import Processes
from cuda_agent.tasks.filter.records import Checked, Failure, failed
from cuda_agent.tasks.filter.timing import Disturbed, TimingTurns, time_task
from cuda_agent.tasks.records import DatasetTask, Measurement
from cuda_agent.workers.process import memory_limit_mib
from cuda_agent.workspace.sandbox import resolve_level
from cuda_agent.workspace.temporary import temporary_folder

#: The least host memory of a process, which has torch and its compiler.
_LEAST_MIB = 3072
#: The void timings of one task after which it is left for another run.
_MOST_VOID = 3
#: The time in which running tasks may end when the time is over.
_GRACE_S = 10.0

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class VoidTiming:
    """A task whose timings were all disturbed."""

    task: DatasetTask
    reason: str


class Passes:
    """A context manager that ends all its processes when it ends."""

    def __init__(self, options: FilterOptions, say: Callable[[str], None], until: float | None = None) -> None:
        """`until` is the time on the monotonic clock at which no more tasks begin."""
        self._options, self._say, self._until = options, say, until
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        compiling = bytecode.fill()
        if compiling is not None:
            self._say("compiling torch's Python once")
            try:
                compiling.wait()
            finally:
                compiling.kill()
        self._level = resolve_level(self._options.sandbox)
        self._folder = self._stack.enter_context(temporary_folder("judge"))
        rule = QueueRule(_device_bytes(self._options))
        self._queue = self._stack.enter_context(QueueServer(Path(self._folder) / "queue.sock", rule)).address
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stack.close()

    @property
    def over(self) -> bool:
        """Whether the time is over, so that no more tasks begin."""
        return self._until is not None and time.monotonic() >= self._until

    def check_all(
        self, tasks: Sequence[DatasetTask], *, alone: bool = False
    ) -> Iterator[Checked | Measurement | DatasetTask]:
        """Yields each task's result, in any order, for as many as there is time for. A task that ran short of time or
        memory beside others is yielded itself. With `alone`, one task at a time, that is a failure."""
        at_a_time = 1 if alone else self._options.worker_count()
        options = self._options
        limits = ProcessLimits(_device_bytes(options), max(1, len(os.sched_getaffinity(0)) // at_a_time), sleeps=True)

        def run(processes: Processes, task: DatasetTask) -> Checked | Measurement | DatasetTask:
            try:
                return check(processes, task, options, limits, self._queue_of(task))
            except Failure as failure:
                return task if failure.scarce and at_a_time > 1 else failed(task.task.key, failure)

        # A task that is short of time or memory here is checked alone later.
        yield from self._run(tasks, at_a_time, run, 1 if alone else options.tasks_a_process, repeats_scarce=False)

    def _queue_of(self, task: DatasetTask) -> DeviceQueue:
        return DeviceQueue(self._queue, task.task.key, rank=task.number)

    def time_all(self, tasks: Sequence[tuple[DatasetTask, Checked]]) -> Iterator[Measurement | VoidTiming]:
        """Yields each task's result, in any order. Raises DeviceError."""
        options = self._options
        turns = TimingTurns(options.device, self._say)
        limits = ProcessLimits(
            _device_bytes(options), len(os.sched_getaffinity(0)) if options.device is Device.CPU else 2
        )

        def run(processes: Processes, item: tuple[DatasetTask, Checked]) -> Measurement | VoidTiming:
            task, checked = item
            reason = ""
            for _ in range(_MOST_VOID):
                try:
                    return time_task(processes, task, checked, options, limits, turns, self._queue_of(task))
                except Failure as failure:
                    return failed(task.task.key, failure, checked)
                except Disturbed as error:
                    reason = str(error)
            return VoidTiming(task, reason)

        try:
            yield from self._run(tasks, options.lane_count(), run, options.tasks_a_process)
        finally:
            turns.close()

    def _memory_mib(self, at_a_time: int) -> int:
        """Returns the host memory of a task's process, within what the machine has for all of them."""
        return max(_LEAST_MIB, min(self._options.host_memory_mib, memory_limit_mib(1 << 40) // at_a_time))

    def _run(
        self,
        items: Sequence[Item],
        at_a_time: int,
        job: Callable[[Processes, Item], Result],
        a_process: int,
        *,
        repeats_scarce: bool = True,
    ) -> Iterator[Result]:
        """Yields what `job` returns for every item, as it comes, for as many as there is time for. Raises what `job`
        raises. `a_process` is how many items may follow each other in one process."""
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        supply = task_supply(self._options.device, self._level, self._memory_mib(at_a_time), folder)
        idle: queue.SimpleQueue[Processes] = queue.SimpleQueue()
        for _ in range(min(at_a_time, len(items))):
            idle.put(Processes(lambda: supply.start(CHECKER), a_process, repeats_scarce=repeats_scarce))

        def work(item: Item) -> Result | None:
            processes = idle.get()
            try:
                return None if self.over else job(processes, item)
            finally:
                idle.put(processes)

        pool = ThreadPoolExecutor(at_a_time)
        try:
            futures = [pool.submit(work, item) for item in items]
            left_s = None if self._until is None else max(0.1, self._until + _GRACE_S - time.monotonic())
            for future in as_completed(futures, timeout=left_s):
                result = future.result()
                if result is not None:
                    yield result
        except TimeoutError:
            if not self.over:
                raise
            self._say("time is over; the next run repeats the running tasks")
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            supply.close()
            pool.shutdown()


def _device_bytes(options: FilterOptions) -> int:
    """Returns the bytes of the device that a process may use: nine tenths of those that are free now."""
    return int(0.9 * device_facts(options.device)[1])
