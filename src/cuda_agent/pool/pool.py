"""Many evaluations at once, on this machine: `pool.submit(task, candidate)` gives a future of the evaluation.

Builders compile, as many at a time as cores allow; a holder per GPU (one for the CPU) verifies and times, one candidate
after the other, and keeps the sessions of the tasks that it saw last, so that the candidates of one task share their
compiled baselines; one that has nothing left to do takes over what waits for another. Both are processes of their own
(`holder.py`): nothing that the caller or a builder computes delays the clock of a holder.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, NamedTuple, Self, TypeVar

from cuda_agent.core.config import JudgeOptions, TimingStop
from cuda_agent.core.enums import Device
from cuda_agent.core.errors import CudaAgentError, UsageError, WorkerError
from cuda_agent.core.records import Candidate, Evaluation, Task
from cuda_agent.judge import Built, Case
from cuda_agent.pool.holder import Builder, Holder
from cuda_agent.workers.affinity import kept_for_timing, share
from cuda_agent.workers.helper import HelperProcess, Role

Helper = TypeVar("Helper")

MOST_BUILDERS = 8
SESSIONS = 4
#: a task stays with the holder that knows it until that one is so many candidates behind the least busy one.
_PATIENCE = 2


class Pool:
    """A context manager. Leaving it, or `close`, cancels what waits, ends what runs, and leaves no process behind.

    Scripts that use it need the usual `if __name__ == "__main__":`, as with `multiprocessing`.
    """

    def __init__(
        self,
        options: JudgeOptions,
        *,
        gpus: Sequence[str] = (),
        builders: int | None = None,
        sessions: int = SESSIONS,
        hidden: Sequence[Path] = (),
    ) -> None:
        """`gpus`: UUIDs (or numbers) of GPUs, a holder each; by default one holder for the GPU that torch takes.
        `builders`: how many candidates are compiled at a time. `sessions`: how many tasks a holder keeps ready.
        `hidden`: folders that no worker may read, as `JudgeSession` has them.

        Raises UsageError where these make no sense.
        """
        if gpus and options.device is not Device.CUDA:
            raise UsageError("GPUs were named, but the device is cpu", "Set device to cuda")
        if sessions < 1 or (builders is not None and builders < 1):
            raise UsageError("A pool needs at least one builder and one session", "Pass 1 or more")
        self._options = options
        self._folder = tempfile.TemporaryDirectory(prefix="cuda-agent-pool-")
        gate = Path(self._folder.name) if options.device is Device.CPU else None
        places = list(enumerate(gpus or (None,)))
        self._claims = contextlib.ExitStack()
        kept = [self._keep_cores(number, len(places)) for number, _ in places]
        off = frozenset().union(*kept)
        count = builders or builders_for(options, holders=len(places), kept=len(off))
        make = partial(Builder, gate, off)
        self._builders = [self._helper(make, f"builder {i}", device=False) for i in range(count)]
        self._idle = Idle(self._builders)
        self._building = ThreadPoolExecutor(count, thread_name_prefix="build")
        self._holders = [
            _Lane(
                self._helper(
                    partial(Holder, options, gpu, gate, sessions, tuple(hidden), (number, len(places)), kept[number]),
                    f"holder of {gpu or 'the device'}",
                    device=True,
                )
            )
            for number, gpu in places
        ]
        self._sessions = sessions
        self._lock = threading.Lock()
        self._unfinished: set[Future[Evaluation]] = set()
        self._closed = False

    @property
    def builders(self) -> int:
        """How many candidates are compiled at a time."""
        return len(self._builders)

    def _helper(self, make: Callable[[], Role], name: str, *, device: bool) -> HelperProcess:
        """Where a role runs: a process of this machine. A pool over several machines has another place."""
        return HelperProcess(make, name=name)

    def _keep_cores(self, number: int, count: int) -> frozenset[int]:
        """For what this holder times, of the cores that it keeps to; until the pool is closed."""
        cores = os.sched_getaffinity(0)
        mine = share(cores, number, count)
        if self._options.device is not Device.CUDA or (count > 1 and mine == cores):
            return frozenset()
        return self._claims.enter_context(kept_for_timing(mine))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def submit(
        self, task: Task, candidate: Candidate, *, with_profile: bool = True, stop: TimingStop | None = None
    ) -> Future[Evaluation]:
        """Returns at once. The future holds the evaluation, or raises what isn't the candidate's fault: TaskError,
        DeviceError, SandboxError, StoreError, WorkerError. It can be cancelled until verification begins.

        `with_profile=False`: verification only, as `JudgeSession.verify`. `stop`: as `JudgeSession.evaluate`.
        """
        future: Future[Evaluation] = Future()
        case = Case(task, self._options.stopping(stop), candidate)
        with self._lock:
            if self._closed:
                raise WorkerError("The pool is closed", "Open another one")
            self._unfinished.add(future)
            lane = self._lane(task.key)
            lane.waiting += 1
            lane.expected[future] = task
            if lane.waiting == 1:
                # It has nothing else to do while the candidate is compiled.
                lane.threads.submit(self._prepare, lane)
            self._building.submit(self._build, future, case, with_profile)
        future.add_done_callback(self._finished)
        return future

    def compile(self, candidate: Candidate) -> Built:
        """Waits for a builder that no submitted candidate wants, and its answer. Raises DeviceError, StoreError,
        SandboxError, WorkerError."""
        with self._idle.one(first=False) as builder:
            built: Built = builder.call("compile", candidate, self._options)
        return built

    def ask(self, task: Task, method: str, *arguments: Any, quiet: bool = False) -> Any:
        """What a method of the task's `JudgeSession` returns, when its holder is free. `quiet`: it times something.
        Raises what that raises, and WorkerError."""
        with self._lock:
            if self._closed:
                raise WorkerError("The pool is closed", "Open another one")
            lane = self._lane(task.key)
            lane.waiting += 1
        try:
            return lane.helper.call("ask", task, method, arguments, quiet)
        finally:
            with self._lock:
                lane.waiting -= 1

    def close(self) -> None:
        """Harmless when done before. Futures that aren't done raise CancelledError or WorkerError."""
        with self._lock:
            self._closed = True
            unfinished = tuple(self._unfinished)
        for future in unfinished:
            future.cancel()
        helpers = [*self._builders, *(lane.helper for lane in self._holders)]
        for helper in helpers:
            helper.terminate()
        for helper in helpers:
            helper.close()
        self._building.shutdown(cancel_futures=True)
        for lane in self._holders:
            lane.threads.shutdown(cancel_futures=True)
        self._folder.cleanup()
        self._claims.close()

    # ------------------------------------------------------------ in threads of this process

    def _lane(self, key: str) -> _Lane:
        """The holder that a task goes to: one that knows it, where that one isn't far behind the least busy one."""
        least = min(self._holders, key=lambda lane: lane.waiting)
        known = [lane for lane in self._holders if key in lane.tasks and lane.waiting <= least.waiting + _PATIENCE]
        lane = min(known or [least], key=lambda lane: lane.waiting)
        lane.sees(key, self._sessions)
        return lane

    def _finished(self, future: Future[Evaluation]) -> None:
        with self._lock:
            self._unfinished.discard(future)
            if (lane := self._expecting(future)) is not None:
                del lane.expected[future]
                lane.waiting -= 1

    def _expecting(self, future: Future[Evaluation]) -> _Lane | None:
        """None: it was cancelled."""
        return next((lane for lane in self._holders if future in lane.expected), None)

    def _prepare(self, lane: _Lane) -> None:
        """As many of the tasks that candidates wait for as the holder keeps: their baselines compile side by side."""
        while (task := self._unprepared(lane)) is not None:
            # What is wrong with the task is said to whoever waits for a candidate of it.
            with contextlib.suppress(CudaAgentError):
                lane.helper.call("prepare", task)

    def _unprepared(self, lane: _Lane) -> Task | None:
        """The next such task; it counts as prepared from now on."""
        with self._lock:
            expected = {task.key: task for task in lane.expected.values()}
            lane.prepared &= expected.keys()
            waiting = [task for key, task in expected.items() if key not in lane.prepared]
            if not waiting or len(lane.prepared) >= self._sessions:
                return None
            lane.prepared.add(waiting[0].key)
            return waiting[0]

    def _build(self, future: Future[Evaluation], case: Case, with_profile: bool) -> None:
        if future.cancelled():
            return
        try:
            with self._idle.one(first=True) as builder:
                built: Case = builder.call("build", case)
            if not built.decided:
                with self._lock:
                    if (expecting := self._expecting(future)) is not None:
                        expecting.ready.append(_Ready(future, built, with_profile))
                # It, or whoever has nothing to do.
                for lane in self._holders:
                    lane.threads.submit(self._judge_next, lane)
            elif future.set_running_or_notify_cancel():
                future.set_result(built.evaluation())
        except BaseException as error:  # noqa: BLE001 - the boundary: whoever waits for the future must hear of it
            if future.set_running_or_notify_cancel():
                future.set_exception(error)

    def _judge_next(self, lane: _Lane) -> None:
        with self._lock:
            found = next_for(lane, self._holders, self._sessions)
        if found is None:
            return
        try:
            self._judge(lane, *found)
        finally:
            lane.busy = False

    def _judge(self, lane: _Lane, future: Future[Evaluation], case: Case, with_profile: bool) -> None:
        if not future.set_running_or_notify_cancel():
            return
        if case.task.key not in lane.prepared:
            self._prepare(lane)
        try:
            future.set_result(lane.helper.call("judge", case, with_profile))
        except BaseException as error:  # noqa: BLE001 - as above
            future.set_exception(error)


class Idle(Generic[Helper]):
    """The builders that have nothing to do. What is to be judged gets the next one before what is compiled ahead."""

    def __init__(self, builders: Sequence[Helper]) -> None:
        self._builders = list(builders)
        self._changed = threading.Condition()
        self._first = 0
        #: threads that wait for one.
        self.waiting = 0

    @contextlib.contextmanager
    def one(self, *, first: bool) -> Iterator[Helper]:
        """Waits for it."""
        with self._changed:
            self.waiting, self._first = self.waiting + 1, self._first + first
            self._changed.wait_for(lambda: self._builders and (first or not self._first))
            self.waiting, self._first = self.waiting - 1, self._first - first
            builder = self._builders.pop()
            self._changed.notify_all()
        try:
            yield builder
        finally:
            with self._changed:
                self._builders.append(builder)
                self._changed.notify_all()


class _Ready(NamedTuple):
    """A candidate that was compiled, and can be judged."""

    future: Future[Evaluation]
    case: Case
    with_profile: bool


class _Lane:
    """What this process knows of one holder: its process, the thread that waits for it, how many candidates wait and
    of which tasks, which of them are ready, whether it judges one, those tasks that it was told to prepare, and those
    that it saw last."""

    def __init__(self, helper: HelperProcess) -> None:
        self.helper = helper
        self.threads = ThreadPoolExecutor(1, thread_name_prefix="holder")
        self.waiting = 0
        self.expected: dict[Future[Evaluation], Task] = {}
        self.ready: deque[_Ready] = deque()
        self.busy = False
        self.prepared: set[str] = set()
        self.tasks: OrderedDict[str, None] = OrderedDict()

    def sees(self, key: str, sessions: int) -> None:
        """A candidate of this task comes."""
        self.tasks[key] = None
        self.tasks.move_to_end(key)
        while len(self.tasks) > sessions:
            self.tasks.popitem(last=False)


def next_for(lane: _Lane, lanes: Sequence[_Lane], sessions: int) -> _Ready | None:
    """What this holder judges next, and from now on does: of its own; where it has nothing, the last that waits for one
    that is at work, if it knows the task or so many wait there that it is worth while to prepare it."""
    if not lane.ready:
        busy = (other for other in lanes if other.busy and other.ready)
        rich = [o for o in busy if len(o.ready) > _PATIENCE or o.ready[-1].case.task.key in lane.tasks]
        if not rich:
            return None
        other = max(rich, key=lambda other: len(other.ready))
        taken = other.ready.pop()
        # A future that was cancelled meanwhile is expected by nobody.
        if (task := other.expected.pop(taken.future, None)) is not None:
            lane.expected[taken.future] = task
            other.waiting, lane.waiting = other.waiting - 1, lane.waiting + 1
        lane.ready.append(taken)
        lane.sees(taken.case.task.key, sessions)
    lane.busy = True
    return lane.ready.popleft()


def builders_for(options: JudgeOptions, *, holders: int, kept: int = 0) -> int:
    """As many as leave two cores to each holder (a judge and the program that it times), or those that are kept for
    them, at most MOST_BUILDERS."""
    cores = len(os.sched_getaffinity(0))
    return max(1, min(MOST_BUILDERS, (cores - max(2 * holders, kept)) // options.compiler_jobs))
