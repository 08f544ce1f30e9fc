"""Many evaluations at once, on this machine: `pool.submit(task, candidate)` gives a future of the evaluation.

Builders compile, as many at a time as cores allow; a holder per GPU (one for the CPU) verifies and times, one candidate
after the other, and keeps the sessions of the tasks that it saw last, so that the candidates of one task share their
compiled baselines. Both are processes of their own: nothing that the caller or a builder computes delays the clock of a
holder. On the CPU, where a compiler would be foreign load, nobody builds while a holder times.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from cuda_agent.core.config import JudgeOptions, TimingStop
from cuda_agent.core.enums import Device
from cuda_agent.core.errors import CudaAgentError, UsageError, WorkerError
from cuda_agent.core.records import Candidate, Evaluation, Task
from cuda_agent.judge.build import Built, build
from cuda_agent.judge.case import Case
from cuda_agent.judge.helper import HelperProcess, Role
from cuda_agent.judge.quiet import Hush, no_hush
from cuda_agent.judge.session import JudgeSession

Helper = TypeVar("Helper")

MOST_BUILDERS = 8
SESSIONS = 4
#: builders give way to what is timed.
_NICE = 5
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
        count = builders or builders_for(options, holders=max(1, len(gpus)))
        self._builders = [self._helper(partial(Builder, gate), f"builder {i}", device=False) for i in range(count)]
        self._idle = Idle(self._builders)
        self._building = ThreadPoolExecutor(count, thread_name_prefix="build")
        self._holders = [
            _Lane(
                self._helper(
                    partial(Holder, options, gpu, gate, sessions, tuple(hidden)),
                    f"holder of {gpu or 'the device'}",
                    device=True,
                )
            )
            for gpu in (gpus or (None,))
        ]
        self._sessions = sessions
        self._lock = threading.Lock()
        self._unfinished: set[Future[Evaluation]] = set()
        self._closed = False

    def _helper(self, make: Callable[[], Role], name: str, *, device: bool) -> HelperProcess:
        """Where a role runs: a process of this machine. A pool over several machines has another place."""
        return HelperProcess(make, name=name)

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
            self._building.submit(self._build, lane, future, case, with_profile)
        future.add_done_callback(partial(self._finished, lane))
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

    # ------------------------------------------------------------ in threads of this process

    def _lane(self, key: str) -> _Lane:
        """The holder that a task goes to: one that knows it, where that one isn't far behind the least busy one."""
        least = min(self._holders, key=lambda lane: lane.waiting)
        known = [lane for lane in self._holders if key in lane.tasks and lane.waiting <= least.waiting + _PATIENCE]
        lane = min(known or [least], key=lambda lane: lane.waiting)
        lane.tasks[key] = None
        lane.tasks.move_to_end(key)
        while len(lane.tasks) > self._sessions:
            lane.tasks.popitem(last=False)
        return lane

    def _finished(self, lane: _Lane, future: Future[Evaluation]) -> None:
        with self._lock:
            self._unfinished.discard(future)
            del lane.expected[future]
            lane.waiting -= 1

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

    def _build(self, lane: _Lane, future: Future[Evaluation], case: Case, with_profile: bool) -> None:
        if future.cancelled():
            return
        try:
            with self._idle.one(first=True) as builder:
                built: Case = builder.call("build", case)
            if not built.decided:
                lane.threads.submit(self._judge, lane, future, built, with_profile)
            elif future.set_running_or_notify_cancel():
                future.set_result(built.evaluation())
        except BaseException as error:  # noqa: BLE001 - the boundary: whoever waits for the future must hear of it
            if future.set_running_or_notify_cancel():
                future.set_exception(error)

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


class _Lane:
    """What this process knows of one holder: its process, the thread that waits for it, how many candidates wait and
    of which tasks, those of them that it was told to prepare, and the tasks that it saw last."""

    def __init__(self, helper: HelperProcess) -> None:
        self.helper = helper
        self.threads = ThreadPoolExecutor(1, thread_name_prefix="holder")
        self.waiting = 0
        self.expected: dict[Future[Evaluation], Task] = {}
        self.prepared: set[str] = set()
        self.tasks: OrderedDict[str, None] = OrderedDict()


def builders_for(options: JudgeOptions, *, holders: int) -> int:
    """As many as leave two cores to each holder (a judge and the program that it times), at most MOST_BUILDERS."""
    cores = len(os.sched_getaffinity(0))
    return max(1, min(MOST_BUILDERS, (cores - 2 * holders) // options.compiler_jobs))


# ---------------------------------------------------------------- in processes of their own


class Builder:
    """Compiles; needs no device. `gate`: a folder for the locks of `building` and `timing`, None where both may run at
    once."""

    def __init__(self, gate: Path | None) -> None:
        os.nice(_NICE)
        self._gate = gate

    def build(self, case: Case) -> Case:
        """The case with its build. Raises what `Case.build` raises."""
        with building(self._gate):
            case.build()
        return case

    def compile(self, candidate: Candidate, options: JudgeOptions) -> Built:
        """Compiles without looking at the rules. Raises what `build` raises."""
        with building(self._gate):
            return build(candidate, device=options.device, options=options)

    def close(self) -> None:
        pass


class Holder:
    """Owns one device: verifies and times, and keeps the sessions of the tasks that it saw last."""

    def __init__(
        self, options: JudgeOptions, gpu: str | None, gate: Path | None, keep: int, hidden: tuple[Path, ...] = ()
    ) -> None:
        if gpu is not None:
            # Before anything asks the driver. Sandboxes pass it on to the workers.
            os.environ["CUDA_VISIBLE_DEVICES"] = gpu
        self._options, self._gate, self._keep, self._hidden = options, gate, keep, hidden
        self._sessions: OrderedDict[str, JudgeSession] = OrderedDict()

    def prepare(self, task: Task) -> None:
        """Loads the task and lets its baselines compile in the background. Raises TaskError."""
        with self._session(task) as session:
            session.admit()

    def judge(self, case: Case, with_profile: bool) -> Evaluation:
        """Raises what isn't the candidate's fault; the task's next candidate then finds a new session."""
        with self._session(case.task) as session:
            case.judge(session, with_profile=with_profile, quiet=self._quiet)
        return case.evaluation()

    def ask(self, task: Task, method: str, arguments: tuple[Any, ...], quiet: bool) -> Any:
        """Raises what the session's method raises."""
        with self._session(task) as session, self._quiet() if quiet else contextlib.nullcontext():
            return getattr(session, method)(*arguments)

    def close(self) -> None:
        while self._sessions:
            self._sessions.popitem()[1].close()

    @contextlib.contextmanager
    def _session(self, task: Task) -> Iterator[JudgeSession]:
        session = self._sessions.pop(task.key, None)
        if session is None:
            while len(self._sessions) >= self._keep:
                self._sessions.popitem(last=False)[1].close()
            session = JudgeSession(task, self._options, hidden=self._hidden)
        for key, other in list(self._sessions.items()):
            try:
                other.rest()
            except CudaAgentError:
                # Another task's trouble; its next candidate hears of it.
                self._sessions.pop(key).close()
        self._sessions[task.key] = session
        try:
            yield session
        except CudaAgentError:
            self._sessions.pop(task.key).close()
            raise

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[Hush]:
        """Nothing of ours computes beside a timing: no compiler of any task's baselines, on the CPU no builder."""
        for session in self._sessions.values():
            session.settle()
        with timing(self._gate):
            yield no_hush


@contextlib.contextmanager
def building(gate: Path | None) -> Iterator[None]:
    """Any number at a time, never beside `timing`, and not while somebody waits for it."""
    if gate is None:
        yield
        return
    with _locked(gate / "room", fcntl.LOCK_SH, through=gate / "door"):
        yield


@contextlib.contextmanager
def timing(gate: Path | None) -> Iterator[None]:
    """Alone in the room. Whoever waits to get in keeps the door, so that no stream of builders keeps him out."""
    if gate is None:
        yield
        return
    with _locked(gate / "room", fcntl.LOCK_EX, through=gate / "door"):
        yield


@contextlib.contextmanager
def _locked(room: Path, how: int, *, through: Path) -> Iterator[None]:
    """A lock of the kernel: it ends with its process, however that ends."""
    with room.open("w") as inside:
        with through.open("w") as door:
            fcntl.flock(door, how)
            fcntl.flock(inside, how)
        yield
