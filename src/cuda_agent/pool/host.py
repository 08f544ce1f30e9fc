"""The roles of a pool's processes: builders compile, and device hosts hold the judge of a task.

The computations of the caller and of builders don't delay the clock of a device host.
"""

import os
import time
from collections import OrderedDict
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any, cast

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device
from cuda_agent.core.errors import CudaAgentError
from cuda_agent.core.inspection import Roofline
from cuda_agent.core.records import Candidate, Evaluation, Task
from cuda_agent.core.stack import read_stack
from cuda_agent.judge import MAX_COMPILE_THREADS, Built, Case, Sharing, build_extension, device_roofline
from cuda_agent.pool.client import DeviceQueue
from cuda_agent.pool.queued import QueuedSession
from cuda_agent.pool.rule import QueueRule
from cuda_agent.pool.server import Address, QueueServer
from cuda_agent.workers.affinity import keep_off
from cuda_agent.workspace.temporary import temporary_folder

#: The niceness of builders, so that timed programs come first.
_NICE = 5


class BuilderRole:
    """Compiles without a device. Where the device is the CPU, compilers disturb timing, so they take turns in its
    `queue`."""

    def __init__(self, queue: Address | None, kept: frozenset[int] = frozenset()) -> None:
        """`kept` are the cores for timed programs."""
        os.nice(_NICE)
        keep_off(kept)
        self._queue = None if queue is None else DeviceQueue(queue, f"builder {os.getpid()}", time.time())

    def build(self, case: Case) -> Case:
        """Returns the case with its build. Raises what `Case.build` raises."""
        with nullcontext() if self._queue is None else self._queue.host("build"):
            case.build()
        return case

    def compile(self, candidate: Candidate, options: JudgeOptions) -> Built:
        """Compiles without checking the rules. Raises what `build_extension` raises."""
        with nullcontext() if self._queue is None else self._queue.host("build"):
            return build_extension(candidate, options)

    def close(self) -> None:
        pass


class DeviceHost:
    """Holds the judges of the `keep` latest tasks, and answers one request at a time."""

    def __init__(
        self,
        options: JudgeOptions,
        queue: Address | None,
        *,
        gpu: str | None = None,
        keep: int = 1,
        hidden: tuple[Path, ...] = (),
        cores: frozenset[int] = frozenset(),
        kept: frozenset[int] = frozenset(),
        compile_threads: int = MAX_COMPILE_THREADS,
    ) -> None:
        """`queue` is the device's queue, or None where no other process uses the device. `gpu` is the device's UUID or
        number. `cores` are those that its processes may use; an empty set means all. `kept` are the cores for timed
        programs."""
        # The stack counts the cores, so it is read before this process has fewer.
        self._card = card_bytes(gpu)
        keep_off((os.sched_getaffinity(0) - cores if cores else frozenset()) | kept)
        if gpu is not None:
            # The driver reads this once, and sandboxes pass it on to the workers.
            os.environ["CUDA_VISIBLE_DEVICES"] = gpu
        self._options, self._keep, self._hidden, self._kept = options, keep, hidden, kept
        self._compile_threads = compile_threads
        self._stack = ExitStack()
        self._queue = queue or self._own_queue()
        self._sessions: OrderedDict[str, QueuedSession] = OrderedDict()

    def prepare(self, task: Task, rank: float = 0.0) -> None:
        """Loads the task and lets its baselines compile in the background. Raises TaskError."""
        self.expect(task, rank)
        self._call(task, "admit")
        self._call(task, "prewarm")

    def expect(self, task: Task, rank: float = 0.0) -> None:
        """Makes a session for the task, which is opened by the first request. `rank` is the time at which the task
        began."""
        if task.key not in self._sessions:
            while len(self._sessions) >= self._keep:
                self._sessions.popitem(last=False)[1].close()
            self._sessions[task.key] = self._new_session(task, rank or time.time())

    def judge(self, case: Case, with_profile: bool) -> Evaluation:
        """Returns the evaluation. Raises errors that the candidate didn't cause; the task's next candidate then gets a
        new session."""
        return cast(Evaluation, self._call(case.task, "judge", case, with_profile=with_profile))

    def ask(self, task: Task, method: str, arguments: tuple[Any, ...]) -> Any:
        """Returns the result of a method of the task's `QueuedSession`. Raises what it raises."""
        return self._call(task, method, *arguments)

    def limits(self) -> Roofline | None:
        """Returns the device's roofline, which is measured once."""
        with DeviceQueue(self._queue, "limits", time.time()).clock("limits"):
            return device_roofline(self._options.device)

    def release(self, key: str) -> None:
        """Ends the session of a task, if it has one."""
        session = self._sessions.pop(key, None)
        if session is not None:
            session.close()

    def release_idle(self) -> None:
        """Ends all sessions, because another task waits for their memory."""
        for key in list(self._sessions):
            self.release(key)

    def close(self) -> None:
        self.release_idle()
        self._stack.close()

    def _call(self, task: Task, method: str, *arguments: Any, **options: Any) -> Any:
        self.expect(task)
        self._sessions.move_to_end(task.key)
        try:
            return getattr(self._sessions[task.key], method)(*arguments, **options)
        except CudaAgentError:
            self.release(task.key)
            raise

    def _new_session(self, task: Task, rank: float) -> QueuedSession:
        sharing = Sharing(
            # On a CPU the imports would disturb the timing of another task.
            prewarms=self._options.device is Device.CUDA,
            gives_back=self._options.device is Device.CUDA,
            compile_threads=self._compile_threads,
            timed_cores=self._kept,
        )
        queue = DeviceQueue(self._queue, f"{task.name} {task.key[:12]} {os.getpid()}", rank)
        return QueuedSession(task, self._options, queue, sharing, hidden=self._hidden, card_bytes=self._card)

    def _own_queue(self) -> Address:
        folder = self._stack.enter_context(temporary_folder("queue"))
        rule = QueueRule(None, shares_cores=self._options.device is Device.CPU)
        return self._stack.enter_context(QueueServer(folder / "queue.sock", rule)).address


def card_bytes(gpu: str | None) -> int:
    """Returns the memory of a GPU, given by its UUID or number, in bytes."""
    gpus = read_stack().gpus
    found = next((one for one in gpus if one.uuid == gpu), gpus[0] if gpus else None)
    return ((found.memory_mib if found else None) or 16384) << 20
