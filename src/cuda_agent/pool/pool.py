"""The broker: many tasks share the devices, cores and compilers of this machine through one `Pool`.

Each device has a queue (`server.py`, by the rule of `rule.py`) and some device hosts (`host.py`), each of which holds
the judge of one task. Builders compile for all of them. A task goes to an idle host on the device with the fewest
waiting requests. Further requests for the task go to the same host, or to a host on another device where many requests
wait.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self, cast

from cuda_agent.core.config import JudgeOptions, TimingStop
from cuda_agent.core.enums import Device
from cuda_agent.core.errors import CudaAgentError, UsageError, WorkerError
from cuda_agent.core.inspection import Roofline
from cuda_agent.core.records import Candidate, Evaluation, Task
from cuda_agent.judge import MAX_COMPILE_THREADS, Built, Case
from cuda_agent.pool.builders import Builders, builders_for
from cuda_agent.pool.host import BuilderRole, DeviceHost, card_bytes
from cuda_agent.pool.rule import QueueRule
from cuda_agent.pool.server import Address, QueueServer
from cuda_agent.workers.affinity import kept_for_timing, share
from cuda_agent.workers.helper import HelperProcess, Role
from cuda_agent.workspace.temporary import temporary_folder

#: The number of tasks whose judges a device keeps ready.
SESSIONS = 4
#: A task leaves its host when more requests wait there and a host of another device is idle.
_PATIENCE = 2
#: The share of a device's memory that is promised. The rest is for contexts of other programs and for fragmentation.
_PROMISED = 0.9
#: The cores of a host step, in which several processes of a task import at the same time.
_CORES_OF_A_STEP = 3


@dataclass
class _Host:
    """A device host and its state."""

    helper: HelperProcess
    device: int
    threads: ThreadPoolExecutor
    #: Keys of the tasks that it holds, the latest last.
    tasks: list[str] = field(default_factory=list)
    #: The number of requests that wait for it or run on it.
    waiting: int = 0
    #: Whether a task has this host until it ends.
    reserved: bool = False


class Pool:
    """A context manager. Leaving it, or `close`, cancels waiting requests, ends running ones, and ends all its
    processes.

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
        log: Path | None = None,
    ) -> None:
        """`gpus` are UUIDs (or numbers) of GPUs; by default it is the GPU that torch uses. `builders` is how many
        candidates are compiled at a time. `sessions` is how many tasks a device keeps ready. `hidden` are folders that
        no worker may read, as in `JudgeSession`. `log` is a file that gets a line for each turn.

        Raises UsageError where these values are inconsistent.
        """
        if gpus and options.device is not Device.CUDA:
            raise UsageError("GPUs were named, but the device is cpu", "Set device to cuda")
        if sessions < 1 or (builders is not None and builders < 1):
            raise UsageError("A pool needs at least one builder and one session", "Give 1 or more")
        self._options, self._sessions, self._hidden, self._log = options, sessions, tuple(hidden), log
        self._stack = contextlib.ExitStack()
        self._folder = self._stack.enter_context(temporary_folder("pool"))
        self._lock = threading.Lock()
        self._unfinished: set[Future[Evaluation]] = set()
        self._closed = False
        places = gpus or (None,)
        kept = [self._keep_cores(number, len(places)) for number in range(len(places))]
        self.hosts: list[_Host] = []
        queues = [self._open_device(number, gpu, len(places), kept[number]) for number, gpu in enumerate(places)]
        off = frozenset().union(*kept)
        count = builders or builders_for(options, devices=len(places), kept=len(off))
        make = partial(BuilderRole, queues[0] if options.device is Device.CPU else None, off)
        self.builders = Builders([self._helper(make, f"builder {i}", device=False) for i in range(count)])
        self._building = ThreadPoolExecutor(count, thread_name_prefix="build")

    def _open_device(self, number: int, gpu: str | None, count: int, kept: frozenset[int]) -> Address | None:
        """Opens the queue and the hosts of one device."""
        cuda = self._options.device is Device.CUDA
        cores = os.sched_getaffinity(0)
        mine = share(cores, number, count)
        slots = max(1, len(mine - kept) // _CORES_OF_A_STEP)
        card = int(_PROMISED * card_bytes(gpu)) if cuda else None
        rule = QueueRule(card, host_slots=slots, shares_cores=not cuda)
        path = self._folder / f"queue-{number}.sock"
        server = QueueServer(path, rule, log=self._log, is_short=partial(self._release_idle, number))
        self._stack.enter_context(server)
        threads = max(1, min(MAX_COMPILE_THREADS, len(mine) // self._sessions))
        make = partial(
            DeviceHost, self._options, server.address, gpu=gpu, hidden=self._hidden, compile_threads=threads,
            cores=frozenset(mine) if mine < cores else frozenset(), kept=kept,
        )  # fmt: skip
        for index in range(self._sessions):
            name = f"device host {index + 1} of {gpu or self._options.device}"
            self._add_host(make, name, number)
        return server.address

    def _add_host(self, make: Callable[[], Role], name: str, device: int) -> None:
        helper = self._helper(make, name, device=True)
        self.hosts.append(_Host(helper, device, ThreadPoolExecutor(1, thread_name_prefix="host")))

    def _helper(self, make: Callable[[], Role], name: str, *, device: bool) -> HelperProcess:
        """Returns a process of this machine for the role. A pool over several machines overrides this method."""
        return HelperProcess(make, name=name)

    def _keep_cores(self, number: int, count: int) -> frozenset[int]:
        """Returns cores for programs that this device times, until the pool is closed."""
        cores = os.sched_getaffinity(0)
        mine = share(cores, number, count)
        if self._options.device is not Device.CUDA or (count > 1 and mine == cores):
            return frozenset()
        return self._stack.enter_context(kept_for_timing(mine))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def submit(
        self, task: Task, candidate: Candidate, *, with_profile: bool = True, stop: TimingStop | None = None
    ) -> Future[Evaluation]:
        """Returns at once. The future has the evaluation, or raises an error that the candidate didn't cause:
        TaskError, DeviceError, SandboxError, StoreError, WorkerError. It can be cancelled until verification begins.

        With `with_profile=False` it only verifies, like `JudgeSession.verify`. `stop` is the same as in
        `JudgeSession.evaluate`.
        """
        future: Future[Evaluation] = Future()
        case = Case(task, self._options.stopping(stop), candidate)
        with self._lock:
            host = self._choose(task)
            self._unfinished.add(future)
            is_idle = host.waiting == 1
        if is_idle:
            # This loads the task while its candidate compiles. An error is raised again when the candidate is judged.
            host.threads.submit(self._quietly, host.helper, "prepare", task)
        self._building.submit(self._build, host, future, case, with_profile)
        future.add_done_callback(partial(self._finished, host))
        return future

    def compile(self, candidate: Candidate) -> Built:
        """Returns the build of a builder that no submitted candidate needs. Raises DeviceError, StoreError,
        SandboxError, WorkerError."""
        with self.builders.one(first=False) as builder:
            return cast(Built, builder.call("compile", candidate, self._options))

    def ask(self, task: Task, method: str, *arguments: Any) -> Any:
        """Returns the result of a method of the task's `QueuedSession`. Raises what it raises, and WorkerError."""
        with self._lock:
            host = self._choose(task)
        try:
            return host.helper.call("ask", task, method, arguments)
        finally:
            with self._lock:
                host.waiting -= 1

    @contextlib.contextmanager
    def staying(self, task: Task, *, rank: float = 0.0, load: bool = True) -> Iterator[None]:
        """Reserves a host for the task in this block; its judge ends with the block. `rank` is the time at which the
        task began, in seconds since the epoch; older tasks come first. With `load=False` the judge is opened by the
        first request. Raises TaskError where the task can't be judged, and WorkerError."""
        with self._lock:
            host = self._choose(task)
            host.reserved = True
        try:
            host.helper.call("prepare" if load else "expect", task, rank)
            yield
        finally:
            with contextlib.suppress(CudaAgentError):
                host.helper.call("release", task.key)
            with self._lock:
                host.waiting -= 1
                host.reserved = False
                host.tasks = [key for key in host.tasks if key != task.key]

    def limits(self) -> Roofline | None:
        """Returns the device's roofline, which is measured once. Raises WorkerError, DeviceError."""
        return cast(Roofline | None, self.hosts[0].helper.call("limits"))

    def close(self) -> None:
        """Ends all processes. Unfinished futures raise CancelledError or WorkerError. A second call does nothing."""
        with self._lock:
            self._closed = True
            unfinished = tuple(self._unfinished)
        for future in unfinished:
            future.cancel()
        helpers = [*self.builders.all, *(host.helper for host in self.hosts)]
        for helper in helpers:
            helper.terminate()
        for helper in helpers:
            helper.close()
        self._building.shutdown(cancel_futures=True)
        for host in self.hosts:
            host.threads.shutdown(cancel_futures=True)
        self._stack.close()

    def _choose(self, task: Task) -> _Host:
        """Returns the host for a request, and counts the request as waiting there. Raises WorkerError where the pool is
        closed."""
        if self._closed:
            raise WorkerError("The pool is closed", "Open another one")
        known = [host for host in self.hosts if task.key in host.tasks]
        free = [host for host in self.hosts if not host.waiting and not host.reserved]
        host = min(known, key=lambda host: host.waiting, default=None)
        if host is not None and host.waiting > _PATIENCE:
            devices = {one.device for one in known}
            host = next((other for other in free if other.device not in devices), host)
        if host is None:
            open_to = free or [one for one in self.hosts if not one.reserved] or self.hosts
            host = min(open_to, key=lambda one: (one.waiting, self._load(one.device), len(one.tasks)))
        host.tasks = [*(key for key in host.tasks if key != task.key), task.key][-self._kept_tasks() :]
        host.waiting += 1
        return host

    def _kept_tasks(self) -> int:
        """Returns how many tasks one host keeps."""
        return 1

    def _load(self, device: int) -> int:
        return sum(host.waiting for host in self.hosts if host.device == device)

    def _release_idle(self, device: int) -> None:
        """Ends the sessions of idle hosts of a device, because a task waits for memory."""
        with self._lock:
            idle = [h for h in self.hosts if h.device == device and h.tasks and not h.waiting and not self._closed]
            for host in idle:
                host.tasks = []
                with contextlib.suppress(RuntimeError):
                    host.threads.submit(self._quietly, host.helper, "release_idle")

    def _quietly(self, helper: HelperProcess, job: str, *arguments: Any) -> None:
        with contextlib.suppress(CudaAgentError):
            helper.call(job, *arguments)

    def _finished(self, host: _Host, future: Future[Evaluation]) -> None:
        with self._lock:
            self._unfinished.discard(future)
            host.waiting -= 1

    def _build(self, host: _Host, future: Future[Evaluation], case: Case, with_profile: bool) -> None:
        if future.cancelled():
            return
        try:
            with self.builders.one(first=True) as builder:
                built: Case = builder.call("build", case)
            if not built.decided:
                host.threads.submit(self._judge, host, future, built, with_profile)
            elif future.set_running_or_notify_cancel():
                future.set_result(built.evaluation())
        except BaseException as error:  # noqa: BLE001 - a thread's boundary: the future raises the error
            if future.set_running_or_notify_cancel():
                future.set_exception(error)

    def _judge(self, host: _Host, future: Future[Evaluation], case: Case, with_profile: bool) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(host.helper.call("judge", case, with_profile))
        except BaseException as error:  # noqa: BLE001 - as above
            future.set_exception(error)
