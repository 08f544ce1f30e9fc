"""Who has the device: many at once for what isn't timed, one alone for what is.

The tasks of a benchmark are at work in processes of their own. One that times (`alone`) must have the device for
itself: no other's compiler may autotune there, no other's verification run. What isn't timed (`shared`: admission,
verification) goes side by side. Compilers of baselines take long, and use the device now and then: their processes go
on beside those who share and are stopped while somebody is alone (`aside`). Contexts are made one at a time, also
beside one that is alone but while it has something on the clock (`hush`): they take as long as all that is timed.
The benchmark's process decides (`turns.Turns`, served by `LaneServer` over a Unix socket); a `Lane` is a process's way
to ask. A turn is a connection, so it ends with its process.
"""

from __future__ import annotations

import json
import os
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TextIO

from cuda_agent.bench.turns import LOOK_AGAIN_S, How, Turns
from cuda_agent.core.errors import WorkerError
from cuda_agent.workspace.process import go_on, pause, stand_still
from cuda_agent.workspace.sockets import bound_socket, connected_socket

#: a process that is stopped may have kernels on the device: those that one measurement of a compiler launches at once.
DRAIN_S = 0.15
#: for so long a process that is stopped is waited for: a driver's call goes on until it returns.
_STILL_S, _LOOK_S = 2.0, 0.01
_GRANTED, _HUSH, _UNHUSH = b"g", b"h", b"u"
#: of a word and what is asked.
_LONGEST = 2048


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


@dataclass
class _Turn:
    """What a client has asked for, for what, and what came of it."""

    task: str
    step: str
    how: How
    needed: int
    pids: tuple[int, ...]
    asked: float
    begun: float | None = None
    #: seconds of the hushes that are over; and since when it is hushed.
    hushed_s: float = 0.0
    hushed_since: float | None = None

    def hush(self, now: float) -> None:
        """From now on."""
        if self.hushed_since is None:
            self.hushed_since = now

    def unhush(self, now: float) -> None:
        if self.hushed_since is not None:
            self.hushed_s += now - self.hushed_since
            self.hushed_since = None


class LaneServer:
    """Answers at `path` from a thread of its own, until the `with` block ends; whoever waits then hears of it. `log`:
    a file that gets a line for every turn, with the times by the system's clock. The turns are its thread's from then
    on; others say with `set_room` what there is."""

    def __init__(self, path: Path, turns: Turns | None = None, *, log: Path | None = None) -> None:
        self.address, self.turns = Address(path, secrets.token_bytes(16)), turns or Turns()
        self._room = self.turns.room
        self._selector = selectors.DefaultSelector()
        self._clients: dict[int, socket.socket] = {}
        self._asked: dict[int, _Turn] = {}
        #: with all that they have started.
        self._stopped: dict[int, frozenset[int]] = {}
        self._stopped_at = 0.0
        self._log_path = log
        self._log: TextIO | None = None
        self._thread = threading.Thread(target=self._serve, name="lane", daemon=True)
        self._end, self._ended = socket.socketpair()

    def __enter__(self) -> LaneServer:
        # What can't be written is noticed by those who write what matters.
        if self._log_path is not None:
            with suppress(OSError):
                self._log = self._log_path.open("a", buffering=1)
        self._since = time.time() - time.monotonic()
        self._listener = bound_socket(self.address.path)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._ended, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.close()
        self._thread.join()
        for turn in self._asked.values():
            self._let_go_on(turn.pids)
        for open_socket in (self._listener, self._ended, *self._clients.values()):
            open_socket.close()
        self._selector.close()
        if self._log is not None:
            self._log.close()

    def set_room(self, room: int | None) -> None:
        """From now on all who aren't alone may need so many bytes together; nobody loses a turn by that. From any
        thread."""
        self._room = room

    def _serve(self) -> None:
        while True:
            waits = any(turn.begun is None for turn in self._asked.values())
            heard = self._selector.select(LOOK_AGAIN_S if waits else None)
            if not heard:
                self.turns.room = self._room
                self._tell(self.turns.look(time.monotonic()))
            for key, _ in heard:
                if key.fileobj is self._ended:
                    return
                self.turns.room = self._room
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    self._hear(key.fd)

    def _accept(self) -> None:
        with suppress(OSError):
            client, _ = self._listener.accept()
            client.setblocking(False)
            self._clients[client.fileno()] = client
            self._selector.register(client, selectors.EVENT_READ)

    def _hear(self, ticket: int) -> None:
        """A client's word, or its end; who says anything else is cut off."""
        client = self._clients[ticket]
        try:
            said = client.recv(_LONGEST)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        now, word = time.monotonic(), self.address.word
        if said.startswith(word) and ticket not in self._asked:
            asked = json.loads(said[len(word) :])
            pids = tuple(asked["pids"])
            # What can't be stopped must not be beside one that is alone.
            how = How(asked["how"])
            how = How.SHARED if how.is_aside and not _may_stop(pids) else how
            needed, owner, rank = asked["bytes"], asked["owner"], asked["rank"]
            self._asked[ticket] = _Turn(asked["task"], asked["step"], how, needed, pids, now)
            self._tell(self.turns.ask(ticket, how, needed=needed, owner=owner, rank=rank, now=now))
            return
        turn = self._asked.get(ticket)
        if said and turn is not None and turn.begun is not None and not said.strip(_HUSH + _UNHUSH):
            for at in range(len(said)):
                self._hush(ticket, turn, said[at : at + 1] == _HUSH)
            return
        self._selector.unregister(client)
        # Closed after it has left: its number may be the next one's.
        granted = self.turns.leave(ticket, now)
        client.close()
        del self._clients[ticket]
        self._asked.pop(ticket, None)
        if turn is not None:
            turn.unhush(now)
            self._let_go_on(turn.pids)
            self._note(turn, now)
        self._tell(granted)

    def _hush(self, ticket: int, turn: _Turn, hushed: bool) -> None:
        """`hushed`: answered when nobody does anything on the device any more; else everybody goes on."""
        now = time.monotonic()
        if not hushed:
            turn.unhush(now)
        self._tell(self.turns.hush(ticket, hushed, now))
        if hushed:
            self._wait_for_those_who_stop()
            turn.hush(time.monotonic())
            with suppress(OSError):
                self._clients[ticket].send(_GRANTED)

    def _wait_for_those_who_stop(self) -> None:
        end = time.monotonic() + _STILL_S
        pids = frozenset().union(*self._stopped.values())
        while not stand_still(pids) and time.monotonic() < end:
            time.sleep(_LOOK_S)
            self._stopped_at = time.monotonic()
        time.sleep(max(0.0, self._stopped_at + DRAIN_S - time.monotonic()))

    def _tell(self, granted: list[int]) -> None:
        self._stop_or_go_on()
        now = time.monotonic()
        for ticket in granted:
            self._asked[ticket].begun = now
            # One that has just died leaves by itself.
            with suppress(OSError):
                self._clients[ticket].send(_GRANTED)

    def _stop_or_go_on(self) -> None:
        """Processes that are aside, as the rule says."""
        still = [turn for turn in self._asked.values() if turn.begun is not None and self.turns.stops(turn.how)]
        pids = {pid for turn in still for pid in turn.pids}
        self._let_go_on(tuple(self._stopped.keys() - pids))
        if fresh := pids - self._stopped.keys():
            self._stopped |= {pid: pause(pid) for pid in fresh}
            self._stopped_at = time.monotonic()

    def _let_go_on(self, pids: tuple[int, ...]) -> None:
        for pid in self._stopped.keys() & set(pids):
            go_on(self._stopped.pop(pid))

    def _note(self, turn: _Turn, now: float) -> None:
        if self._log is None:
            return
        times = {"asked_s": turn.asked, "begun_s": turn.begun, "left_s": now}
        line: dict[str, Any] = {"task": turn.task, "step": turn.step, "how": turn.how, "bytes": turn.needed}
        line |= {key: None if at is None else round(self._since + at, 3) for key, at in times.items()}
        if turn.how is How.ALONE:
            line["hushed_s"] = round(turn.hushed_s, 3)
        with suppress(OSError):
            self._log.write(json.dumps(line) + "\n")


def _may_stop(pids: Sequence[int]) -> bool:
    """One that has ended need not be stopped."""
    try:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, 0)
    except OSError:
        return False
    return True


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
                    if ticket.recv(1) == _GRANTED:
                        return ticket
            except OSError:
                pass
            except BaseException:
                ticket.close()
                raise
            finally:
                with self._known:
                    self._waiting.pop(ticket, None)
            ticket.close()
        raise _ended()

    def _waits(self, ticket: socket.socket) -> bool:
        """Whether this thread may."""
        thread = threading.get_ident()
        with self._known:
            self._waiting[ticket] = thread
            return self._ending in (None, thread)


@contextmanager
def _hush(ticket: socket.socket) -> Iterator[None]:
    try:
        ticket.sendall(_HUSH)
        answer = ticket.recv(1)
    except OSError:
        answer = b""
    if answer != _GRANTED:
        raise _ended()
    try:
        yield
    finally:
        with suppress(OSError):
            ticket.sendall(_UNHUSH)


def _ended() -> WorkerError:
    return WorkerError("The benchmark that this task belongs to has ended", "Go on with bench --resume")
