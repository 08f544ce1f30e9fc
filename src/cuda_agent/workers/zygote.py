"""Processes for many tasks a minute: a sandboxed zygote that has imported torch and its compiler forks one for each.

Every task has its own process, like every candidate, but forked from a process in the sandbox: importing torch and its
compiler takes seconds, a fork milliseconds. Within its sandbox a fork may kill the zygote, which costs its own task a
verdict and the judge a new zygote. It can't change it (`inside/zygote.py`).
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from cuda_agent.core.enums import Device, Verdict
from cuda_agent.core.errors import WorkerError
from cuda_agent.workers.channel import ChannelClosed, ChannelError, JudgeChannel, RemoteFailure, name_of
from cuda_agent.workers.process import Fault, Worker, WorkerFault, fault_of, how_it_ended
from cuda_agent.workers.requests import A, FaultKind, WorkerRequest
from cuda_agent.workers.requests.zygote import EndFork, ForkTask, WarmZygote

_WARM_TIMEOUT_S = 300.0
_FORK_TIMEOUT_S = 30.0
_END_TIMEOUT_S = 20.0


class Zygote:
    """One sandbox, started when first needed and again after it was lost. It has one fork at a time."""

    def __init__(self, start: Callable[[], Worker], *, serves: str, warm: bool = True) -> None:
        """`start` returns a new worker of the role `ZYGOTE`. `serves` is the module whose operations its forks answer.
        `warm`: its forks will compile."""
        self._start, self._serves, self._warm = start, serves, warm
        self._worker: Worker | None = None
        self.closed = False

    def prepare(self) -> None:
        """Waits until it can fork. Raises WorkerError."""
        self._ready()

    def fork(self) -> Fork:
        """Forks a process. Raises WorkerError."""
        worker = self._ready()
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            request = ForkTask(environment=_compiler_folders(worker.scratch))
            worker.request(request, timeout_s=_FORK_TIMEOUT_S, descriptors=(theirs.fileno(),))
        except WorkerFault as error:
            mine.close()
            self._lose()
            raise WorkerError(f"The zygote doesn't fork: {error.fault.reason}", "Run again") from None
        finally:
            theirs.close()
        return Fork(self, JudgeChannel(mine))

    def end(self) -> Fault | int | None:
        """Ends the fork and all that it started. Returns its exit code, or the fault of the whole sandbox."""
        worker = self._worker
        if worker is None:
            return None
        try:
            return worker.request(EndFork(), timeout_s=_END_TIMEOUT_S).code
        except WorkerFault as error:
            self._lose()
            return error.fault

    def close(self) -> None:
        """Ends it and everything in it. May be called from another thread, whose requests then fail."""
        self.closed = True
        self._lose()

    def tail(self) -> str:
        return "" if self._worker is None else self._worker.tail()

    def _ready(self) -> Worker:
        if self._worker is not None and self._worker.alive:
            return self._worker
        if self.closed:
            raise WorkerError("The zygote has been ended", "Run again")
        worker = self._worker = self._start()
        try:
            self._prepare(worker)
        except WorkerFault as error:
            self._lose()
            raise WorkerError(f"The zygote doesn't start: {error.fault.reason}", "Run again") from None
        return worker

    def _prepare(self, worker: Worker) -> None:
        settings = worker.settings
        request = WarmZygote(device=settings.device, level=settings.level, compiler=self._warm, serves=self._serves)
        warmed = worker.request(request, timeout_s=_WARM_TIMEOUT_S)
        if settings.device is Device.CUDA and warmed.cuda:
            self._lose()
            raise WorkerError(
                "Importing torch's compiler has started CUDA, and no process can be forked after that",
                "Use a tested version of torch",
            )

    def _lose(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.kill()


class Fork:
    """A task's process. A context manager: nothing of it is left after the block."""

    def __init__(self, zygote: Zygote, channel: JudgeChannel) -> None:
        self._zygote, self._channel = zygote, channel
        self.ended = False

    def __enter__(self) -> Fork:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.end()

    def request(self, request: WorkerRequest[A], *, timeout_s: float) -> A:
        """Returns the answer. Raises WorkerFault; the process is then ended, except after an error that it reported
        itself."""
        try:
            return self._channel.request(request, timeout_s=timeout_s)
        except ChannelError as error:
            raise WorkerFault(self._fault(error, name_of(request), timeout_s)) from None

    def end(self) -> Fault | int | None:
        """Ends the process. Returns its exit code, or the fault of its whole sandbox. Harmless when done before."""
        if self.ended:
            return None
        self.ended = True
        self._channel.close()
        return self._zygote.end()

    def _fault(self, error: ChannelError, op: str, timeout_s: float) -> Fault:
        tail = self._zygote.tail()
        ended = None if isinstance(error, RemoteFailure) else self.end()
        if not isinstance(error, ChannelClosed):
            return fault_of(error, op, timeout_s, tail)
        if isinstance(ended, Fault):
            return replace(ended, reason=f"{op}: {ended.how or ended.reason}")
        return Fault(Verdict.CRASHED, f"{op}: {how_it_ended(ended)}", FaultKind.DIED, tail)


def _compiler_folders(scratch: Path) -> dict[str, str]:
    """Returns a new cache for each fork, at a secret place, since a compiler runs what it finds there."""
    folder = scratch / f"compiler-{secrets.token_hex(8)}"
    return {"TORCHINDUCTOR_CACHE_DIR": str(folder), "TRITON_CACHE_DIR": str(folder / "triton")}
