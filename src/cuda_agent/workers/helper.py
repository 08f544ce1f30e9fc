"""A helper process that does one job after the other for this process, and ends with it.

Both sides are trusted, so jobs and answers are pickled. Code of a candidate runs only inside sandboxes that the helper
starts.
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

#: seconds in which a helper that is asked to end ends its sandboxes and removes its files.
_END_TIMEOUT_S = 20.0
#: in a helper: sends a value of its role to the caller.
_tell: Callable[[Any], None] | None = None


def tell(value: Any) -> None:
    """Sends a value from a role at work to its caller's `told`. Outside a helper it does nothing."""
    if _tell is not None:
        _tell(value)


class Role(Protocol):
    """An object whose methods are a helper's jobs. `close` ends what it holds."""

    def close(self) -> None: ...


class HelperProcess:
    """Starts its process at the first call, and again after that has died. Calls run one at a time."""

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
        """Returns what the role's method returns; `told` gets the values that it tells meanwhile. Raises the method's
        CudaAgentError, and WorkerError where the process ends meanwhile."""
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
        """Asks the process to end. Callers that wait for an answer get WorkerError, and no call starts it again."""
        with self._starting:
            self._ended = True
            if self._process is not None and self._process.is_alive():
                self._process.terminate()

    def close(self) -> None:
        """Ends the process and waits for its end."""
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
    """Runs the helper's main loop until it is told to end or its parent has ended."""
    signal.signal(signal.SIGTERM, _end)
    # A terminal's Ctrl-C reaches the whole group, but the parent decides when its helpers end.
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
    """Reads jobs, and detects the parent's end, which the main thread can't do while it is at work."""
    while True:
        try:
            jobs.put(connection.recv())
        except (EOFError, OSError):
            os.kill(os.getpid(), signal.SIGTERM)
            return


def _end(_signal: int, _frame: FrameType | None) -> None:
    # Only once, so that a second signal doesn't interrupt the ending.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(0)
