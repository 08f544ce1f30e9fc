"""A process of ours that does one job after the other for this one, and ends with it.

Trusted on both sides, so jobs and answers are pickled. Nothing of a candidate runs in it but inside sandboxes that it
starts itself.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any, Protocol

from cuda_agent.core.errors import CudaAgentError, WorkerError

#: a helper that is asked to end has so long to end its sandboxes and remove its files.
_END_TIMEOUT_S = 20.0
#: in a helper: how its role's words get to the caller.
_tell: Callable[[Any], None] | None = None


def tell(value: Any) -> None:
    """From a role that is at work: its caller's `told` hears the value. Elsewhere nobody does."""
    if _tell is not None:
        _tell(value)


class Role(Protocol):
    """What a helper runs: jobs are its methods' names and arguments; `close` ends what it holds."""

    def close(self) -> None: ...


class HelperProcess:
    """Started when first needed, and again after it died. One call at a time; whoever comes second waits."""

    def __init__(self, make: Callable[[], Role], *, name: str) -> None:
        """`make` is called in the process; it must be picklable."""
        self._make, self._name = make, name
        self._lock, self._starting = threading.Lock(), threading.Lock()
        self._process: multiprocessing.process.BaseProcess | None = None
        self._connection: Connection | None = None
        self._ended = False

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def call(self, job: str, *arguments: Any, told: Callable[[Any], None] = lambda value: None) -> Any:
        """What the role's method returned; meanwhile `told` hears what it tells. Raises what the method raised of
        CudaAgentError, and WorkerError where the process ended on the way."""
        with self._lock:
            connection = self._connected()
            try:
                connection.send((job, arguments))
                while (message := connection.recv())[0] == "told":
                    told(message[1])
                kind, value = message
            except (OSError, EOFError):
                self._drop()
                remedy = "Its last words are on standard error"
                raise WorkerError(f"The pool's {self._name} ended while at work", remedy) from None
        if kind == "done":
            return value
        error, cause, remedy, detail = value
        raise error(cause, remedy, detail=detail)

    def terminate(self) -> None:
        """Asks it to end; callers that wait for an answer get WorkerError. No call starts it again."""
        with self._starting:
            self._ended = True
            if self._process is not None and self._process.is_alive():
                self._process.terminate()

    def close(self) -> None:
        """Ends it and waits for that."""
        self.terminate()
        with self._lock:
            self._drop()

    def _connected(self) -> Connection:
        if self._connection is not None:
            return self._connection
        with self._starting:
            if self._ended:
                raise WorkerError(f"The pool's {self._name} has been ended", "Open another pool")
            context = multiprocessing.get_context("spawn")
            mine, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, self._make), name=self._name)
            process.start()
            theirs.close()
            self._process, self._connection = process, mine
            return mine

    def _drop(self) -> None:
        process, connection = self._process, self._connection
        self._connection = None
        if connection is not None:
            connection.close()
        if process is None:
            return
        process.join(_END_TIMEOUT_S)
        if process.is_alive():
            process.kill()
            process.join(_END_TIMEOUT_S)


def _serve(connection: Connection, make: Callable[[], Role]) -> None:
    """The process's main: answers until it is told to end, or its parent is gone."""
    signal.signal(signal.SIGTERM, _end)
    # A terminal's Ctrl-C reaches the whole group; the parent says what becomes of us.
    signal.signal(signal.SIGINT, lambda *_: None)
    jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
    lock = threading.Lock()

    def say(kind: str, value: Any) -> None:
        with lock:
            connection.send((kind, value))

    global _tell
    _tell = partial(say, "told")
    threading.Thread(target=_read, args=(connection, jobs), name="read", daemon=True).start()
    with contextlib.suppress(BrokenPipeError), contextlib.closing(make()) as role:
        while True:
            job, arguments = jobs.get()
            try:
                answer: tuple[str, Any] = "done", getattr(role, job)(*arguments)
            except CudaAgentError as error:
                answer = "error", (type(error), error.cause, error.remedy, error.detail)
            say(*answer)


def _read(connection: Connection, jobs: queue.SimpleQueue[Any]) -> None:
    """Jobs, and the end of the parent, which the main thread can't see while it is at work."""
    while True:
        try:
            jobs.put(connection.recv())
        except (EOFError, OSError):
            os.kill(os.getpid(), signal.SIGTERM)
            return


def _end(_signal: int, _frame: FrameType | None) -> None:
    # Once: what ends now must not be ended on its way.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(0)
