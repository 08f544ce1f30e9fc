"""Who has the device: many at once for what isn't timed, one alone for what is.

The tasks of a benchmark are at work in processes of their own. One that times (`alone`) must have the device for
itself: no other's compiler may autotune there, no other's verification run. What isn't timed (`shared`: admission,
baselines that are prepared, verification) goes side by side. The benchmark's process decides (`Turns`, served by
`LaneServer` over a Unix socket); a `Lane` is a process's way to ask. A turn is a connection, so it ends with its
process.
"""

from __future__ import annotations

import secrets
import selectors
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from cuda_agent.core.errors import WorkerError
from cuda_agent.workspace.sockets import bound_socket, connected_socket

#: while somebody waits to be alone, others may still join those who share for so long after the first of them began.
JOIN_S = 6.0
_SHARED, _LONG, _ALONE, _GRANTED = b"s", b"l", b"a", b"g"
#: what is asked for, and the bytes that are needed.
_ASKED = struct.Struct("<cQ")


@dataclass
class Turns:
    """The rule, without sockets. Turns come in phases: all that wait to be alone, one after the other, then all that
    wait to share, together; so the length of a phase is shared by many. Who shares for long (baselines that compile)
    keeps the phase open for others who need it shortly. Tickets are any numbers.

    `room`: bytes that all who share may need together; who needs more shares with nobody. `seconds`: for how long the
    device was used alone, shared, and by nobody."""

    join_s: float = JOIN_S
    room: int | None = None
    seconds: dict[str, float] = field(default_factory=lambda: {"alone": 0.0, "shared": 0.0, "idle": 0.0})

    def __post_init__(self) -> None:
        self._alone: int | None = None
        #: ticket -> whether it shares for long.
        self._sharing: dict[int, bool] = {}
        self._want_alone: dict[int, None] = {}
        self._want_shared: dict[int, bool] = {}
        #: those of the present phase that are still to be alone.
        self._batch: set[int] = set()
        self._bytes: dict[int, int] = {}
        self._shared_since = 0.0
        self._since: float | None = None

    def ask(self, ticket: int, *, alone: bool, long: bool = False, needed: int = 0, now: float) -> list[int]:
        """Somebody wants the device, and `needed` bytes of it; returns the tickets that have it from now on."""
        self._account(now)
        self._bytes[ticket] = needed
        if alone:
            self._want_alone[ticket] = None
        else:
            self._want_shared[ticket] = long
        return self._grant(now)

    def lengthen(self, ticket: int, now: float) -> list[int]:
        """Who shares will do so for long; returns the tickets that have the device from now on."""
        for tickets in (self._sharing, self._want_shared):
            if ticket in tickets:
                tickets[ticket] = True
        return self._grant(now)

    def leave(self, ticket: int, now: float) -> list[int]:
        """Somebody is done, or gave up waiting; returns the tickets that have the device from now on."""
        self._account(now)
        was_shared = bool(self._sharing)
        self._sharing.pop(ticket, None)
        self._want_shared.pop(ticket, None)
        self._want_alone.pop(ticket, None)
        self._bytes.pop(ticket, None)
        self._batch.discard(ticket)
        if self._alone == ticket:
            self._alone = None
        if was_shared and not self._sharing:
            self._batch = set(self._want_alone)
        return self._grant(now)

    def _account(self, now: float) -> None:
        if self._since is not None:
            state = "alone" if self._alone is not None else "shared" if self._sharing else "idle"
            self.seconds[state] += now - self._since
        self._since = now

    def _grant(self, now: float) -> list[int]:
        if self._alone is not None:
            return []
        if self._sharing:
            is_open = not self._want_alone or now - self._shared_since < self.join_s
            held = any(self._sharing.values())
            return self._share([t for t, long in self._want_shared.items() if is_open or (held and not long)], now)
        ready = [ticket for ticket in self._want_alone if ticket in self._batch]
        if not ready and self._want_shared:
            return self._share(list(self._want_shared), now)
        if not ready:
            self._batch = set(self._want_alone)
            ready = list(self._want_alone)
        if not ready:
            return []
        self._alone = ready[0]
        self._batch.discard(self._alone)
        del self._want_alone[self._alone]
        return [self._alone]

    def _share(self, wanting: list[int], now: float) -> list[int]:
        """As many as there is room for, in their order, but at least one."""
        granted: list[int] = []
        if not self._sharing:
            self._shared_since = now
        for ticket in wanting:
            used = sum(self._bytes[other] for other in self._sharing)
            if self._sharing and self.room is not None and used + self._bytes[ticket] > self.room:
                break
            self._sharing[ticket] = self._want_shared.pop(ticket)
            granted.append(ticket)
        return granted


class Address(NamedTuple):
    """Where turns are asked for, and the word without which nobody is heard: a candidate could find the socket."""

    path: Path
    word: bytes


class LaneServer:
    """Answers at `path` from a thread of its own, until the `with` block ends; whoever waits then hears of it."""

    def __init__(self, path: Path, turns: Turns | None = None) -> None:
        self.address, self.turns = Address(path, secrets.token_bytes(16)), turns or Turns()
        self._selector = selectors.DefaultSelector()
        self._clients: dict[int, socket.socket] = {}
        self._heard: set[int] = set()
        self._thread = threading.Thread(target=self._serve, name="lane", daemon=True)
        self._stop, self._stopped = socket.socketpair()

    def __enter__(self) -> LaneServer:
        self._listener = bound_socket(self.address.path)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._stopped, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.close()
        self._thread.join()
        for open_socket in (self._listener, self._stopped, *self._clients.values()):
            open_socket.close()
        self._selector.close()

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._stopped:
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
            said = client.recv(64)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        now, word = time.monotonic(), self.address.word
        known = len(said) == len(word) + _ASKED.size and said.startswith(word)
        kind, needed = _ASKED.unpack(said[len(word) :]) if known else (b"", 0)
        if known and ticket not in self._heard:
            self._heard.add(ticket)
            self._tell(self.turns.ask(ticket, alone=kind == _ALONE, long=kind == _LONG, needed=needed, now=now))
            return
        if kind == _LONG:
            self._tell(self.turns.lengthen(ticket, now))
            return
        self._heard.discard(ticket)
        self._selector.unregister(client)
        # Closed after it has left: its number may be the next one's.
        granted = self.turns.leave(ticket, now)
        client.close()
        del self._clients[ticket]
        self._tell(granted)

    def _tell(self, granted: list[int]) -> None:
        for ticket in granted:
            # One that has just died leaves by itself.
            with suppress(OSError):
                self._clients[ticket].send(_GRANTED)


class Lane:
    """A process's way to the device. Its threads share one turn, so that one that waits for another doesn't wait for
    the device with it; where one of them is alone, what the others do is its own work."""

    def __init__(self, address: Address) -> None:
        self._address = address
        #: bytes of the device that what is done in a shared turn needs.
        self.needed = 0
        self._known = threading.Condition()
        self._ticket: socket.socket | None = None
        self._asking = self._is_alone = False
        #: how often the turn is shared in this process; `_mine.depth`: in this thread.
        self._count = 0
        self._mine = threading.local()

    @contextmanager
    def shared(self, *, long: bool = False) -> Iterator[None]:
        """Beside others, never beside one that is alone. Harmless inside itself. `long`: many seconds, so that others
        who share shortly needn't wait for the next phase. Raises WorkerError."""
        if self._is_alone:
            yield
            return
        self._join(long)
        try:
            yield
        finally:
            self._leave(1)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else has the device. What this thread shared is given up, for good. Raises WorkerError."""
        self._leave(self._depth)
        ticket = self._wait(_ALONE)
        self._is_alone = True
        try:
            yield
        finally:
            self._is_alone = False
            ticket.close()

    def _join(self, long: bool) -> None:
        with self._known:
            self._known.wait_for(lambda: not self._asking)
            if self._ticket is not None:
                if long:
                    with suppress(OSError):
                        self._ticket.sendall(self._asked(_LONG))
                self._add(1)
                return
            self._asking = True
        ticket = None
        try:
            ticket = self._wait(_LONG if long else _SHARED)
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

    def _asked(self, how: bytes) -> bytes:
        return self._address.word + _ASKED.pack(how, self.needed)

    def _wait(self, how: bytes) -> socket.socket:
        ticket = connected_socket(self._address.path)
        if ticket is not None:
            try:
                ticket.sendall(self._asked(how))
                if ticket.recv(1) == _GRANTED:
                    return ticket
            except OSError:
                pass
            except BaseException:
                ticket.close()
                raise
            ticket.close()
        raise WorkerError("The benchmark that this task belongs to has ended", "Go on with bench --resume")
