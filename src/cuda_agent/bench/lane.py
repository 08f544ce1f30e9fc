"""Who has the device: many at once for what isn't timed, one alone for what is.

The tasks of a benchmark are at work in processes of their own. One that times (`alone`) must have the device for
itself: no other's compiler may autotune there, no other's verification run. What isn't timed (`shared`: admission,
verification) goes side by side. Compilers of baselines take long, and use the device now and then: their processes go
on beside those who share and are stopped while somebody is alone (`aside`). Contexts are made one at a time, also
beside one that is alone but while it has something on the clock (`hush`): they take as long as all that is timed.
The benchmark's process decides (`turns.Turns`, served by `lane_server.LaneServer` over a Unix socket); a `Lane` is a
process's way to ask. A turn is a connection, so it ends with its process.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from cuda_agent.bench.turns import How
from cuda_agent.core.errors import WorkerError
from cuda_agent.workspace.sockets import connected_socket

#: what the server says to who has a turn or has hushed the others, and who is alone to it.
GRANTED, HUSH, UNHUSH = b"g", b"h", b"u"


class Address(NamedTuple):
    """Where turns are asked for, and the word without which nobody is heard: a candidate could find the socket."""

    path: Path
    word: bytes


class Size(NamedTuple):
    """Bytes of the device that an eager call holds: its inputs, its outputs, and what else there is at its peak."""

    inputs: int = 0
    outputs: int = 0
    rest: int = 0

    @classmethod
    def of(cls, peak_bytes: int) -> Size:
        """Where no more is known than what it holds: as of one operator that reads as much as it writes."""
        return cls(peak_bytes // 2, peak_bytes // 2)


class Step(NamedTuple):
    """What a turn is for: a word for the log, and how many copies it needs of what an eager call holds."""

    name: str = ""
    inputs: float = 0.0
    outputs: float = 0.0
    rest: float = 0.0

    def needed_bytes(self, size: Size) -> int:
        """Of the device."""
        return int(self.inputs * size.inputs + self.outputs * size.outputs + self.rest * size.rest)


#: which step a turn is for is nobody's business.
_STEP = Step()
_CONTEXT = Step("context")


class Lane:
    """A process's way to the device. Its threads share one turn, so that one that waits for another doesn't wait for
    the device with it; where one of them is alone, what the others do is its own work, but for what is aside."""

    def __init__(self, address: Address) -> None:
        self._address = address
        #: the task that this process is at work on, when it was begun (any clock that all processes share: of those
        #: who wait, the one with the earliest comes first), and what an eager call of it holds.
        self.task, self.begun_s, self.size = "", 0.0, Size()
        self._known = threading.Condition()
        #: turns that are waited for, by the threads that do; and who lets nobody else wait.
        self._waiting: dict[socket.socket, int] = {}
        self._ending: int | None = None
        self._ticket: socket.socket | None = None
        self._asking = False
        #: the thread that is alone.
        self._alone: int | None = None
        #: how often the turn is shared in this process; `_mine.depth`: in this thread.
        self._count = 0
        self._mine = threading.local()

    @contextmanager
    def shared(self, step: Step = _STEP) -> Iterator[None]:
        """Beside others, never beside one that is alone. Harmless inside itself. Raises WorkerError."""
        if self._alone is not None:
            yield
            return
        self._join(step)
        try:
            yield
        finally:
            self._leave(1)

    @contextmanager
    def aside(self, pids: Sequence[int], step: Step = _STEP) -> Iterator[None]:
        """These processes use the device beside others; while somebody is alone, this process too, they are stopped.
        Raises WorkerError."""
        if self._alone == threading.get_ident():
            yield
            return
        with self._wait(How.ASIDE, step, pids):
            yield

    @contextmanager
    def waking(self, pid: int) -> Iterator[None]:
        """This process makes its context: aside, and no other of the benchmark does so meanwhile. Raises
        WorkerError."""
        if self._alone == threading.get_ident():
            yield
            return
        with self._wait(How.WAKING, _CONTEXT, [pid]):
            yield

    @contextmanager
    def host(self, step: Step = _STEP) -> Iterator[None]:
        """Processes of this one keep cores busy, not beside too many others that do so. Raises WorkerError."""
        with self._wait(How.HOST, step):
            yield

    @contextmanager
    def alone(self, step: Step = _STEP) -> Iterator[Callable[[], AbstractContextManager[None]]]:
        """Nobody else has the device. It gives `hush`, which makes a context in which nobody makes one of CUDA's
        either. What this thread shared is given up, for good. Both raise WorkerError."""
        self.step_back()
        with self._wait(How.ALONE, step) as ticket:
            self._alone = threading.get_ident()
            try:
                yield partial(_hush, ticket)
            finally:
                self._alone = None

    @contextmanager
    def ending(self) -> Iterator[None]:
        """No other thread of this process waits for a turn any more: it hears that there is none."""
        with self._known:
            self._ending = threading.get_ident()
            for ticket, thread in self._waiting.items():
                if thread != self._ending:
                    with suppress(OSError):
                        ticket.shutdown(socket.SHUT_RDWR)
        try:
            yield
        finally:
            self._ending = None

    def step_back(self) -> None:
        """What this thread shared is given up, for good."""
        self._leave(self._depth)

    def _join(self, step: Step) -> None:
        with self._known:
            self._known.wait_for(lambda: not self._asking)
            if self._ticket is not None:
                self._add(1)
                return
            self._asking = True
        ticket = None
        try:
            ticket = self._wait(How.SHARED, step)
        finally:
            with self._known:
                self._asking, self._ticket = False, ticket
                if ticket is not None:
                    self._add(1)
                self._known.notify_all()

    def _leave(self, times: int) -> None:
        """As often as this thread has joined, at most."""
        with self._known:
            self._add(-min(times, self._depth))
            if self._count == 0 and self._ticket is not None:
                self._ticket.close()
                self._ticket = None

    def _add(self, times: int) -> None:
        self._count += times
        self._mine.depth = self._depth + times

    @property
    def _depth(self) -> int:
        depth: int = getattr(self._mine, "depth", 0)
        return depth

    def _wait(self, how: How, step: Step, pids: Sequence[int] = ()) -> socket.socket:
        needed = step.needed_bytes(self.size)
        asked: dict[str, Any] = {"how": how, "bytes": needed, "owner": os.getpid(), "pids": list(pids)}
        asked |= {"task": self.task[:200], "step": step.name, "rank": self.begun_s}
        ticket = connected_socket(self._address.path)
        if ticket is not None:
            try:
                if self._waits(ticket):
                    ticket.sendall(self._address.word + json.dumps(asked).encode())
                    granted = ticket.recv(1) == GRANTED
                    if self._has_waited(ticket) and granted:
                        return ticket
            except OSError:
                pass
            except BaseException:
                ticket.close()
                raise
            finally:
                self._has_waited(ticket)
            ticket.close()
        raise _ended()

    def _waits(self, ticket: socket.socket) -> bool:
        """Whether this thread may."""
        thread = threading.get_ident()
        with self._known:
            self._waiting[ticket] = thread
            return self._ending in (None, thread)

    def _has_waited(self, ticket: socket.socket) -> bool:
        """Whether this thread still may; from now on nobody else ends its turn."""
        with self._known:
            self._waiting.pop(ticket, None)
            return self._ending in (None, threading.get_ident())


@contextmanager
def _hush(ticket: socket.socket) -> Iterator[None]:
    try:
        ticket.sendall(HUSH)
        answer = ticket.recv(1)
    except OSError:
        answer = b""
    if answer != GRANTED:
        raise _ended()
    try:
        yield
    finally:
        with suppress(OSError):
            ticket.sendall(UNHUSH)


def _ended() -> WorkerError:
    return WorkerError("The benchmark that this task belongs to has ended", "Go on with bench --resume")
