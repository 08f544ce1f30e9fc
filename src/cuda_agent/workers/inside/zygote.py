"""The zygote's role: it has imported torch and its compiler, and forks a process for each task that the judge sends.

A fork starts in milliseconds, where a new process imports for seconds. It inherits nothing that an earlier task has
touched: the zygote runs no task's code. Between two tasks it ends every process that the last one left, and empties all
folders that it could write into. CUDA isn't started before a fork, since no fork could use it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import signal
import socket
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import torch

from cuda_agent.core.enums import Device, SandboxLevel
from cuda_agent.workers.channel import WorkerChannel
from cuda_agent.workers.inside.compilations import import_compiler
from cuda_agent.workers.inside.imports import importing
from cuda_agent.workers.inside.main import Context, cuda_has_started, serve
from cuda_agent.workers.requests import Done, Operations, Start, operations_of
from cuda_agent.workers.requests.zygote import EndedFork, EndFork, ForkTask, WarmedZygote, WarmZygote
from cuda_agent.workspace.confine import PR_SET_DUMPABLE, prctl
from cuda_agent.workspace.descendants import descendants

_PR_SET_CHILD_SUBREAPER = 36


def create(context: Context) -> Operations:
    zygote = Zygote(context)
    return operations_of(zygote.start, zygote.warm, zygote.fork, zygote.end)


class Zygote:
    """Forks one process at a time."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._fork: int | None = None
        self._served: Any = None
        self._folders: tuple[Path, ...] = ()
        # The driver's management library answers torch's questions about GPUs, so that CUDA doesn't start here.
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
        # The compiler reads these when it is imported. A pool of its processes would outlive its task. Each fork has
        # its own cache, in which a precompiled header and a test of the processor's instructions would save nothing.
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
        os.environ["TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"] = "0"
        os.environ["TORCHINDUCTOR_VEC_ISA_OK"] = "1"
        # A fork has none of its parent's threads, for which OpenMP would wait for ever.
        torch.set_num_threads(1)
        prctl(_PR_SET_CHILD_SUBREAPER, 1)
        # Processes of the same user must not read this one's memory.
        prctl(PR_SET_DUMPABLE, 0)

    def start(self, _request: Start) -> Done:
        """Does nothing, since each fork starts the device."""
        return Done()

    def warm(self, request: WarmZygote) -> WarmedZygote:
        """Imports, and learns where processes of this sandbox can write."""
        self._folders = (Path(os.environ["TMPDIR"]),)
        if request.level is SandboxLevel.FULL:
            # The sandbox's own folders. In a reduced one no process can write there.
            self._folders += (Path("/tmp"), Path("/dev/shm"))
        with importing():
            self._served = importlib.import_module(request.serves)
            if request.compiler:
                _warm_compiler(request.device)
                self._empty_folders()
        return WarmedZygote(cuda=cuda_has_started())

    def fork(self, request: ForkTask) -> Done:
        (descriptor,) = self._context.descriptors
        if self._fork is not None:
            self.end(EndFork())
        pid = os.fork()
        if pid == 0:
            self._become_fork(descriptor, request.environment)
        os.close(descriptor)
        self._fork = pid
        return Done()

    def end(self, _request: EndFork) -> EndedFork:
        """Ends the fork, and returns when nothing of it is left."""
        code = _end_all(self._fork)
        self._fork = None
        self._empty_folders()
        return EndedFork(code=code)

    def _become_fork(self, descriptor: int, environment: dict[str, str]) -> NoReturn:
        try:
            if self._context.control is not None:
                os.close(self._context.control)
            prctl(PR_SET_DUMPABLE, 1)
            prctl(_PR_SET_CHILD_SUBREAPER, 0)
            os.setsid()
            os.environ.update(environment)
            context = Context()
            serve(WorkerChannel(socket.socket(fileno=descriptor)), context, self._served.create(context))
        finally:
            # In any case a fork must not return into the zygote's loop.
            os._exit(0)

    def _empty_folders(self) -> None:
        """Empties all folders that processes of this sandbox can write into."""
        for folder in self._folders:
            for entry in folder.iterdir():
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry, ignore_errors=True)
                else:
                    with contextlib.suppress(OSError):
                        entry.unlink()


def _warm_compiler(device: Device) -> None:
    if device is Device.CPU:
        import_compiler(Device.CPU)
        _compile("inductor")
        return
    for step in (partial(import_compiler, Device.CUDA), partial(_compile, "aot_eager"), _load_triton_driver):
        # No step should start CUDA. A step that does is left to the forks.
        if _is_harmless(step):
            step()


def _compile(backend: str) -> None:
    """Exports and compiles a module of ours. If torch believed in a GPU it would save the state of its generator, which
    starts CUDA."""
    import torch.export

    module: Any = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()).eval()
    inputs = (torch.ones(2, 4),)
    hidden = mock.patch.object(torch.cuda, "is_available", return_value=False)
    with hidden, torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = torch.export.export(module, inputs, strict=False)
        exported.run_decompositions(torch.export.default_decompositions())
        torch.compile(module, backend=backend)(*inputs)
        importlib.import_module("torch._dynamo").reset()


def _load_triton_driver() -> None:
    """Lets Triton compile a small C library, as at its first use."""
    backend = importlib.import_module("triton.backends.nvidia.driver")
    importlib.import_module("triton.runtime.driver").driver.set_active(backend.CudaDriver())


def _is_harmless(step: Callable[[], None]) -> bool:
    """Whether a step works without starting CUDA. It is tried in a fork, since a started driver can't be stopped."""
    pid = os.fork()
    if pid == 0:
        code = 2
        try:
            step()
            code = 1 if cuda_has_started() else 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


def _end_all(fork: int | None) -> int | None:
    """Kills all descendants until none is left. It stops them first, so that a forking process can't outrun it. Returns
    the exit code of `fork`, in `subprocess`'s form."""
    code = None
    while True:
        for how in (signal.SIGSTOP, signal.SIGKILL):
            for pid in _descendants():
                with contextlib.suppress(OSError):
                    os.kill(pid, how)
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
            while pid:
                if pid == fork:
                    code = os.waitstatus_to_exitcode(status)
                pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        time.sleep(0.002)


def _descendants() -> list[int]:
    """Returns the descendants by their numbers here. The outer /proc may have other numbers for them: the last word of
    `NSpid` is the number in the innermost namespace."""
    found = []
    for pid in descendants(int(Path("/proc/self").readlink().name)):
        with contextlib.suppress(OSError, StopIteration):
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            found.append(int(next(line for line in lines if line.startswith("NSpid:")).split()[-1]))
    return found
