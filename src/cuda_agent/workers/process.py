"""A worker as the judge sees it. It starts in its sandbox with torch imported in advance, answers one request at a
time, and ends with its whole process group. Every failure has a name (`Fault`) with the tail of the worker's log."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cuda_agent.core import bytecode
from cuda_agent.core.assets import PACKAGES
from cuda_agent.core.enums import Device, SandboxLevel, Verdict
from cuda_agent.core.errors import WorkerError
from cuda_agent.core.records import Task, Violation
from cuda_agent.core.stack import available_memory
from cuda_agent.workers.affinity import near_gpu
from cuda_agent.workers.buffers import Arena, synchronize
from cuda_agent.workers.channel import ChannelClosed, ChannelError, DeadlinePassed, JudgeChannel, RemoteFailure, name_of
from cuda_agent.workers.requests import A, Detach, FaultKind, ImportTask, Start, WorkerRequest
from cuda_agent.workers.roles import Role, worker_command
from cuda_agent.workspace.forkserver import ForkServer
from cuda_agent.workspace.process import SandboxedProcess
from cuda_agent.workspace.sandbox import SandboxLimits, SandboxSpec, can_fork, closed_environment, fork, spawn

#: seconds from the process's start until torch is imported; a cold disk takes long.
START_TIMEOUT_S = 180.0
LOG_TAIL = 4096
_DEATH_TIMEOUT_S = 5.0
#: MiB on disk. A worker leaves little there: compiled baselines are elsewhere.
_DISK_MIB = 512
#: MiB of torch, a driver and a task's small objects.
_LEAST_MEMORY_MIB = 2048
#: the home of a fork server, which has none.
_NOWHERE = Path("/nonexistent")
#: The compiler reads these when it is imported. A pool of its processes can't be forked. Each worker has its own cache,
#: in which a precompiled header and a test of the processor's instructions would save nothing.
_COMPILER = {
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
    "TORCHINDUCTOR_VEC_ISA_OK": "1",
}

#: Idle threads of one worker must not spin on the cores of a timed one. A random hash seed makes one process's
#: attribute look-ups slower than another's, for its whole life.
_STEADY = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "PYTHONHASHSEED": "0"}
#: On a cpu, memory that a call frees stays for the next. Otherwise the C library returns large blocks to the system or
#: keeps them by the history of its heap, and calls pay for fresh pages or don't, for the whole life of their process.
_KEEPS_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 34)}

_servers: dict[tuple[int, tuple[tuple[str, str], ...], bool], ForkServer] = {}

_VERDICTS = {
    FaultKind.LOAD: Verdict.LOAD_FAILED,
    FaultKind.STRUCTURE: Verdict.WRONG_STRUCTURE,
    FaultKind.OUT_OF_MEMORY: Verdict.OUT_OF_MEMORY,
    FaultKind.DEVICE: Verdict.CRASHED,
    FaultKind.RAISED: Verdict.RAISED,
    FaultKind.TASK: Verdict.RAISED,
}


@dataclass(frozen=True)
class Fault:
    """A worker's failure. `how` is the part of a death's reason that doesn't name the request."""

    verdict: Verdict
    reason: str
    kind: FaultKind
    log_tail: str = ""
    violations: tuple[Violation, ...] = ()
    how: str = ""
    #: the remedy, where an error of ours has one.
    remedy: str = ""


class WorkerFault(Exception):
    """A request failed. The caller decides whose fault that is."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        super().__init__(fault.reason)


@dataclass(frozen=True)
class WorkerSettings:
    """The settings of all workers of a session. `hidden` are folders that no worker sees. `importable` are folders of
    the user's own code, which workers read and import from."""

    device: Device
    level: SandboxLevel
    memory_mib: int
    hidden: tuple[Path, ...] = ()
    importable: tuple[Path, ...] = ()


def memory_limit_mib(wanted_mib: int) -> int:
    """Returns the limit: at most 85 % of the free memory, so that a runaway worker ends before the machine does, but at
    least what a worker needs, since a virtual machine may get more memory as it uses it."""
    free = available_memory()
    return wanted_mib if free is None else min(wanted_mib, max(_LEAST_MEMORY_MIB, int(free / 2**20 * 0.85)))


def fork_server(environment: Mapping[str, str], *, small_pages: bool) -> ForkServer:
    """Returns this process's fork server for workers whose libraries read these variables. It ends with this
    process."""
    made = ForkServer("cuda_agent.workers.inside.main", environment, small_pages=small_pages)
    return _servers.setdefault((os.getpid(), tuple(environment.items()), small_pages), made)


def fork_server_pids() -> set[int]:
    """Returns the process numbers of this process's fork servers."""
    return {server.pid for server in _servers.values() if server.pid is not None}


class Worker:
    """One process of a role. It may read our files in `files`, which the judge fills, possibly after the start.
    `scratch` is its only writable folder."""

    def __init__(
        self,
        role: Role,
        settings: WorkerSettings,
        directory: Path,
        writable: tuple[Path, ...] = (),
        *,
        small_context: bool = False,
    ) -> None:
        """Starts the process and returns at once. `small_context`: its context has one connection to the device, since
        what it times decides nothing. Raises SandboxError when it can't be started."""
        self.role = role
        self.settings = settings
        self.directory = directory
        self.files = directory / "files"
        self.scratch = directory / "scratch"
        self.log = directory / "log"
        for path in (self.files, self.scratch):
            path.mkdir(parents=True, exist_ok=True)
        self._writable = writable
        self._small_context = small_context
        self._imported = self._begun = self._ready = False
        self._starts = threading.Lock()
        self._killed = False
        #: whether nothing is left of it except its folder.
        self.ended = False
        self._attached: set[str] = set()
        self._channel, self._process = self._spawn()

    def _spawn(self) -> tuple[JudgeChannel, SandboxedProcess]:
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        compiled = bytecode.environment()
        own = self.settings.importable
        paths = {"PYTHONPATH": os.pathsep.join(map(str, own))} if own else {}
        # While something is imported, torch may be asked whether there is a GPU. The management library answers, so
        # that the driver starts only where the worker is told to start it.
        more = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"} if self.settings.device is Device.CUDA else _KEEPS_MEMORY
        more = more | (_COMPILER if self.role.compiles else {})
        try:
            spec = SandboxSpec(
                scratch=self.scratch,
                level=self.settings.level,
                # The folder of our package, which an import lists.
                readable=(self.files, PACKAGES, *own, *map(Path, compiled.values())),
                writable=self._writable,
                environment=_STEADY | compiled | more | paths,
                hidden=self.settings.hidden,
                gpu=self.settings.device is Device.CUDA,
                pass_fds=(theirs.fileno(),),
                limits=SandboxLimits(memory_mib=memory_limit_mib(self.settings.memory_mib), disk_mib=_DISK_MIB),
                fixed_addresses=True,
                # On a cpu the program's own tensors are host memory with the same kind of pages as the user's.
                small_pages=self.settings.device is Device.CUDA,
            )
            common = closed_environment(_NOWHERE, _STEADY | compiled | more)
            server = fork_server(common, small_pages=spec.small_pages)
            if can_fork(server, spec.level):
                program = [self.role.module, *([self.settings.device.value] if self.role.compiles else [])]
                return JudgeChannel(mine), fork(server, program, spec, cwd=self.scratch, log=self.log)
            command = worker_command(self.role.module, theirs.fileno())
            return JudgeChannel(mine), spawn(command, spec, cwd=self.scratch, log=self.log)
        except BaseException:
            mine.close()
            raise
        finally:
            theirs.close()

    def imported(self) -> None:
        """Waits until it has imported torch and its role, without its device. Raises WorkerError."""
        with self._starting():
            if not self._imported:
                self._imported = True
                self._channel.hello(timeout_s=START_TIMEOUT_S)

    def without_device(self, request: WorkerRequest[A]) -> A:
        """Answers a request before it starts its device, after `imported`. Raises WorkerError."""
        self.imported()
        with self._starting():
            return self._channel.request(request, timeout_s=START_TIMEOUT_S)

    def import_task(self, task: Task) -> None:
        """Imports what a task imports, after `imported`, which runs the task's source. If that ends the worker, its
        next user finds it dead."""
        with contextlib.suppress(WorkerError):
            self.without_device(ImportTask(name=task.name, source=task.source))

    def ready(self) -> None:
        """Waits until it has imported torch, then lets it start its device. Only our code runs in it.

        Raises WorkerError.
        """
        with self._starts:
            if self._ready:
                return
            self.imported()
            # A driver's buffers are on the NUMA node where it is started: near the GPU, for every worker.
            near = near_gpu() if self.settings.device is Device.CUDA else None
            request = Start(
                device=self.settings.device, cores=tuple(sorted(near or ())), small_context=self._small_context
            )
            with self._starting():
                self._channel.request(request, timeout_s=START_TIMEOUT_S)
            self._ready = True

    def begin(self) -> None:
        """Runs `ready` in the background. Its failure is raised to the next request."""
        if not self._begun:
            self._begun = True
            threading.Thread(target=self.settle, name=f"ready-{self.role.name}", daemon=True).start()

    def settle(self) -> None:
        """Waits for the end of `begin`, if that was called."""
        if self._begun:
            with contextlib.suppress(WorkerError):
                self.ready()

    @contextlib.contextmanager
    def _starting(self) -> Iterator[None]:
        """Wraps the start, in which every failure is ours."""
        try:
            yield
        except ChannelError as error:
            fault = self._fault(error, "start")
            self.kill()
            line = " ".join(fault.reason.split())[:300]
            raise WorkerError(
                f"The {self.role.name} worker doesn't start: {line}",
                "`cuda-agent doctor` says what is missing",
                detail=fault.log_tail,
            ) from None

    def request(
        self,
        request: WorkerRequest[A],
        *,
        timeout_s: float,
        descriptors: Sequence[int] = (),
        spin_s: float = 0.0,
    ) -> A:
        """Returns the answer. It waits without sleep for the first `spin_s` seconds. Raises WorkerFault; the worker is
        then ended, except after an error that it reported itself."""
        self.ready()
        try:
            return self._channel.request(request, timeout_s=timeout_s, descriptors=descriptors, spin_s=spin_s)
        except ChannelError as error:
            raise WorkerFault(self._fault(error, name_of(request), timeout_s)) from None

    def attach(self, arena: Arena) -> None:
        """Maps an arena into the worker, once."""
        if arena.name in self._attached:
            return
        synchronize(arena.device)
        request, descriptors = arena.export()
        self.request(request, timeout_s=60.0, descriptors=descriptors)
        self._attached.add(arena.name)

    def detach(self, arena: Arena) -> None:
        if arena.name in self._attached:
            self._attached.discard(arena.name)
            self.request(Detach(arena=arena.name), timeout_s=60.0)

    @property
    def awake(self) -> bool:
        """Whether its device is started."""
        return self._ready

    @property
    def pid(self) -> int:
        """The process number of the outermost process of its sandbox."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        return not self._killed and self._process.poll() is None

    def doom(self) -> None:
        """Kills without waiting, for many workers that end together. `kill` must follow."""
        self._killed = True
        self._process.doom()

    def kill(self) -> None:
        """Ends it and everything that it started. Harmless when already done."""
        self._killed = True
        self._channel.close()
        self._process.kill()
        self.ended = True

    def tail(self) -> str:
        return self._process.tail(LOG_TAIL)

    def _fault(self, error: ChannelError, op: str, timeout_s: float = START_TIMEOUT_S) -> Fault:
        if isinstance(error, ChannelClosed):
            return self._death(op)
        if not isinstance(error, RemoteFailure):
            self.kill()
        return fault_of(error, op, timeout_s, self.tail())

    def _death(self, op: str) -> Fault:
        deadline = time.monotonic() + _DEATH_TIMEOUT_S
        while (code := self._process.poll()) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        limit = self._process.limit_hit
        self.kill()
        verdict, how = Verdict.CRASHED, how_it_ended(code)
        if limit == "memory" or (code == -signal.SIGKILL and limit is None):
            verdict = Verdict.OUT_OF_MEMORY
            how = f"killed, most likely for its memory ({self._process.peak_memory_mib:.0f} MiB seen)"
        elif limit is not None:
            how = f"ended for exceeding the limit of {limit}"
        return Fault(verdict, f"{op}: {how}", FaultKind.DIED, self.tail(), how=how)


def fault_of(error: ChannelError, op: str, timeout_s: float, tail: str) -> Fault:
    """Returns the fault of a process that reported an error, gave no answer in time, or broke the protocol."""
    if isinstance(error, RemoteFailure):
        return Fault(_VERDICTS[error.kind], error.message, error.kind, tail, remedy=error.remedy)
    if isinstance(error, DeadlinePassed):
        return Fault(Verdict.TIMED_OUT, f"{op} gave no answer within {timeout_s:.0f} s", FaultKind.DEADLINE, tail)
    violation = Violation(rule="protocol", layer="channel", detail=str(error))
    return Fault(Verdict.VIOLATION, f"protocol violation: {error}", FaultKind.PROTOCOL, tail, (violation,))


def how_it_ended(code: int | None) -> str:
    """Returns words for an exit code, for minus a signal's number, or for None, which means that it hasn't ended."""
    if code is None:
        return "closed its channel without an answer"
    if code < 0:
        try:
            return f"died of {signal.Signals(-code).name}"
        except ValueError:
            return f"died of signal {-code}"
    return f"exited with code {code} without an answer"
