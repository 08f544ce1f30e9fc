"""Who has the device: many at once for what isn't timed, one alone for what is.

The tasks of a benchmark are at work in processes of their own. One that times (`alone`) must have the device for
itself: no other's compiler may autotune there, no other's verification run. What isn't timed (`shared`: admission,
verification) goes side by side. Compilers of baselines take long, and use the device now and then: their processes go
on beside those who share and are stopped while somebody is alone (`aside`). The benchmark's process decides (`Turns`,
served by `LaneServer` over a Unix socket); a `Lane` is a process's way to ask. A turn is a connection, so it ends with
its process.
"""

from __future__ import annotations

import json
import os
import secrets
import selectors
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TextIO, cast

from cuda_agent.core.errors import WorkerError
from cuda_agent.workspace.sockets import bound_socket, connected_socket

#: while somebody waits to be alone, others may still join those who share for so long after the first of them began.
JOIN_S = 6.0
#: a process that is stopped may have kernels on the device: those that one measurement of a compiler launches at once.
DRAIN_S = 0.15
_GRANTED = b"g"
#: of a word and what is asked.
_LONGEST = 2048


class How(StrEnum):
    """What a turn is for."""

    SHARED = "shared"
    ALONE = "alone"
    ASIDE = "aside"


@dataclass
class Turns:
    """The rule, without sockets. Turns come in phases: all that wait to be alone, one after the other, then all that
    wait to share, together; so the length of a phase is shared by many. Who is aside has the device whenever nobody is
    alone, and no phase waits for it. Tickets are any numbers.

    `room`: bytes that all who aren't alone may need together; who needs more has it with nobody. An owner's turns need
    as much as the largest of them. `seconds`: for how long the device was used alone, shared, only by those who are
    aside, and by nobody."""

    join_s: float = JOIN_S
    room: int | None = None
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys((*How, "idle"), 0.0))

    def __post_init__(self) -> None:
        self._alone: int | None = None
        self._sharing: set[int] = set()
        self._aside: set[int] = set()
        self._want_alone: dict[int, None] = {}
        #: for one that wants to share or to be aside: which.
        self._want_some: dict[int, How] = {}
        #: those of the present phase that are still to be alone.
        self._batch: set[int] = set()
        #: ticket -> owner, bytes.
        self._needs: dict[int, tuple[int, int]] = {}
        self._shared_since = 0.0
        self._since: float | None = None

    @property
    def stopped(self) -> bool:
        """Whether those who are aside are to stand still."""
        return self._alone is not None

    def ask(self, ticket: int, how: How, *, needed: int = 0, owner: int | None = None, now: float) -> list[int]:
        """Somebody wants the device, and `needed` bytes of it; returns the tickets that have it from now on."""
        self._account(now)
        self._needs[ticket] = ticket if owner is None else owner, needed
        if how is How.ALONE:
            self._want_alone[ticket] = None
        else:
            self._want_some[ticket] = how
        return self._grant(now)

    def leave(self, ticket: int, now: float) -> list[int]:
        """Somebody is done, or gave up waiting; returns the tickets that have the device from now on."""
        self._account(now)
        was_shared = bool(self._sharing)
        self._sharing.discard(ticket)
        self._aside.discard(ticket)
        self._want_some.pop(ticket, None)
        self._want_alone.pop(ticket, None)
        self._needs.pop(ticket, None)
        self._batch.discard(ticket)
        if self._alone == ticket:
            self._alone = None
        if was_shared and not self._sharing:
            self._batch = set(self._want_alone)
        return self._grant(now)

    def _account(self, now: float) -> None:
        if self._since is not None:
            self.seconds[self._state()] += now - self._since
        self._since = now

    def _state(self) -> str:
        if self._alone is not None:
            return How.ALONE
        return How.SHARED if self._sharing else How.ASIDE if self._aside else "idle"

    def _grant(self, now: float) -> list[int]:
        if self._alone is not None:
            return []
        if self._sharing:
            is_open = not self._want_alone or now - self._shared_since < self.join_s
            return self._let_in(now, only_aside=not is_open)
        ready = [ticket for ticket in self._want_alone if ticket in self._batch]
        if not ready and self._want_some:
            granted = self._let_in(now)
            # Where only those who are aside have no room, nobody need wait for them.
            if granted or not self._want_alone:
                return granted
        if not ready:
            self._batch = set(self._want_alone)
            ready = list(self._want_alone)
        if not ready:
            return []
        self._alone = ready[0]
        self._batch.discard(self._alone)
        del self._want_alone[self._alone]
        return [self._alone]

    def _let_in(self, now: float, *, only_aside: bool = False) -> list[int]:
        """As many as there is room for, in their order, but at least one; and those whose owner is there: it may wait
        for them."""
        granted: list[int] = []
        blocked = False
        for ticket, how in list(self._want_some.items()):
            if only_aside and how is not How.ASIDE:
                continue
            more = self._more_bytes(ticket)
            blocked = blocked or not self._has_room(more)
            if blocked and more > 0:
                continue
            del self._want_some[ticket]
            if how is How.SHARED and not self._sharing:
                self._shared_since = now
            (self._aside if how is How.ASIDE else self._sharing).add(ticket)
            granted.append(ticket)
        return granted

    def _used(self) -> dict[int, int]:
        """Bytes of each owner that has the device."""
        used: dict[int, int] = {}
        for ticket in self._sharing | self._aside:
            owner, needed = self._needs[ticket]
            used[owner] = max(needed, used.get(owner, 0))
        return used

    def _more_bytes(self, ticket: int) -> int:
        """What it needs beyond what its owner has; 0 where it has as much."""
        owner, needed = self._needs[ticket]
        used = self._used()
        return max(0, needed - used[owner]) if owner in used else max(1, needed)

    def _has_room(self, more: int) -> bool:
        used = self._used()
        return not used or self.room is None or sum(used.values()) + more <= self.room


class Address(NamedTuple):
    """Where turns are asked for, and the word without which nobody is heard: a candidate could find the socket."""

    path: Path
    word: bytes


class _Turn(NamedTuple):
    """What a client has asked for."""

    task: str
    how: How
    pids: tuple[int, ...]
    asked: float


class LaneServer:
    """Answers at `path` from a thread of its own, until the `with` block ends; whoever waits then hears of it. `log`:
    a file that gets a line for every turn, with the times by the system's clock."""

    def __init__(self, path: Path, turns: Turns | None = None, *, log: Path | None = None) -> None:
        self.address, self.turns = Address(path, secrets.token_bytes(16)), turns or Turns()
        self._selector = selectors.DefaultSelector()
        self._clients: dict[int, socket.socket] = {}
        self._asked: dict[int, _Turn] = {}
        self._granted: dict[int, float] = {}
        self._stopped: set[int] = set()
        self._log_path, self._log = log, cast("TextIO | None", None)
        self._thread = threading.Thread(target=self._serve, name="lane", daemon=True)
        self._end, self._ended = socket.socketpair()

    def __enter__(self) -> LaneServer:
        """Raises OSError where the log can't be written."""
        self._log = None if self._log_path is None else self._log_path.open("a", buffering=1)
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

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._ended:
                    return
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
            how = How.SHARED if asked["how"] == How.ASIDE and not _may_stop(pids) else How(asked["how"])
            self._asked[ticket] = _Turn(asked["task"], how, pids, now)
            self._tell(self.turns.ask(ticket, how, needed=asked["bytes"], owner=asked["owner"], now=now))
            return
        self._selector.unregister(client)
        # Closed after it has left: its number may be the next one's.
        granted = self.turns.leave(ticket, now)
        client.close()
        del self._clients[ticket]
        turn, begun = self._asked.pop(ticket, None), self._granted.pop(ticket, None)
        if turn is not None:
            self._let_go_on(turn.pids)
            self._note(turn, begun, now)
        self._tell(granted)

    def _tell(self, granted: list[int]) -> None:
        self._stop_or_go_on()
        now = time.monotonic()
        for ticket in granted:
            self._granted[ticket] = now
            # One that has just died leaves by itself.
            with suppress(OSError):
                self._clients[ticket].send(_GRANTED)

    def _stop_or_go_on(self) -> None:
        """Processes that are aside, as the rule says."""
        aside = {pid for ticket, turn in self._asked.items() if ticket in self._granted for pid in turn.pids}
        if not self.turns.stopped:
            self._let_go_on(tuple(self._stopped))
        elif fresh := aside - self._stopped:
            for pid in fresh:
                _signal(pid, signal.SIGSTOP)
            self._stopped |= fresh
            time.sleep(DRAIN_S)

    def _let_go_on(self, pids: tuple[int, ...]) -> None:
        for pid in self._stopped.intersection(pids):
            _signal(pid, signal.SIGCONT)
        self._stopped.difference_update(pids)

    def _note(self, turn: _Turn, begun: float | None, now: float) -> None:
        if self._log is None:
            return
        times = {"asked_s": turn.asked, "begun_s": begun, "left_s": now}
        since = {key: None if at is None else round(self._since + at, 3) for key, at in times.items()}
        # A full disk is noticed by those who write what matters.
        with suppress(OSError):
            self._log.write(json.dumps({"task": turn.task, "how": turn.how} | since) + "\n")


def _signal(pid: int, number: int) -> None:
    with suppress(OSError):
        os.kill(pid, number)


def _may_stop(pids: Sequence[int]) -> bool:
    try:
        for pid in pids:
            os.kill(pid, 0)
    except OSError:
        return False
    return True


class Lane:
    """A process's way to the device. Its threads share one turn, so that one that waits for another doesn't wait for
    the device with it; where one of them is alone, what the others do is its own work, but for what is aside."""

    def __init__(self, address: Address) -> None:
        self._address = address
        #: the task that this process is at work on, and the bytes of the device that what it does beside others needs.
        self.task, self.needed = "", 0
        self._known = threading.Condition()
        self._ticket: socket.socket | None = None
        self._asking = False
        #: the thread that is alone.
        self._alone: int | None = None
        #: how often the turn is shared in this process; `_mine.depth`: in this thread.
        self._count = 0
        self._mine = threading.local()

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Beside others, never beside one that is alone. Harmless inside itself. Raises WorkerError."""
        if self._alone is not None:
            yield
            return
        self._join()
        try:
            yield
        finally:
            self._leave(1)

    @contextmanager
    def aside(self, pids: Sequence[int]) -> Iterator[None]:
        """These processes use the device beside others; while somebody is alone, this process too, they are stopped.
        Raises WorkerError."""
        if self._alone == threading.get_ident():
            yield
            return
        with self._wait(How.ASIDE, pids):
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else has the device. What this thread shared is given up, for good. Raises WorkerError."""
        self.step_back()
        with self._wait(How.ALONE):
            self._alone = threading.get_ident()
            try:
                yield
            finally:
                self._alone = None

    def step_back(self) -> None:
        """What this thread shared is given up, for good."""
        self._leave(self._depth)

    def _join(self) -> None:
        with self._known:
            self._known.wait_for(lambda: not self._asking)
            if self._ticket is not None:
                self._add(1)
                return
            self._asking = True
        ticket = None
        try:
            ticket = self._wait(How.SHARED)
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

    def _wait(self, how: How, pids: Sequence[int] = ()) -> socket.socket:
        asked: dict[str, Any] = {"how": how, "bytes": self.needed, "owner": os.getpid(), "pids": list(pids)}
        asked["task"] = self.task[:200]
        ticket = connected_socket(self._address.path)
        if ticket is not None:
            try:
                ticket.sendall(self._address.word + json.dumps(asked).encode())
                if ticket.recv(1) == _GRANTED:
                    return ticket
            except OSError:
                pass
            except BaseException:
                ticket.close()
                raise
            ticket.close()
        raise WorkerError("The benchmark that this task belongs to has ended", "Go on with bench --resume")
