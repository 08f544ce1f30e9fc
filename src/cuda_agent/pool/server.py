"""The server of one device's queue. It applies the `QueueRule` to requests that come over a Unix socket.

A request is a connection, so it ends with the client's process in any case.
"""

import json
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self, TextIO

from cuda_agent.pool.rule import Kind, Need, QueueRequest, QueueRule
from cuda_agent.workspace.sockets import bound_socket

#: The server's answers: a request is granted, a change is refused.
GRANTED, REFUSED = b"g", b"r"
#: The bytes of the longest message: the secret word and a request.
_LONGEST = 2048


class Address(NamedTuple):
    """The address of a queue. The server ignores clients without the word, because a candidate could find the
    socket."""

    path: Path
    word: bytes


@dataclass
class _Turn:
    """A request with its times, in seconds of the monotonic clock."""

    request: QueueRequest
    step: str
    asked: float
    begun: float | None = None


class QueueServer:
    """A context manager. Its thread serves until the block ends, which ends the connections of waiting clients.

    `log` gets a JSON line for each request that ends: task, step, kind, bytes, times in seconds since the epoch, and
    the bytes that were promised when it ended. `is_short` is called when a task waits for memory.
    """

    def __init__(
        self, path: Path, rule: QueueRule, *, log: Path | None = None, is_short: Callable[[], None] = lambda: None
    ) -> None:
        self.address = Address(path, secrets.token_bytes(16))
        self._rule, self._log_path, self._is_short = rule, log, is_short
        self._log: TextIO | None = None
        self._selector = selectors.DefaultSelector()
        self._clients: dict[int, socket.socket] = {}
        self._turns: dict[int, _Turn] = {}
        self._end, self._ended = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="device-queue", daemon=True)

    def __enter__(self) -> Self:
        if self._log_path is not None:
            # The run continues if the log can't be written; its own records then fail too.
            with suppress(OSError):
                self._log = self._log_path.open("a", buffering=1)
        self._epoch = time.time() - time.monotonic()
        self._listener = bound_socket(self.address.path)
        self._listener.listen(128)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._ended, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._end.close()
        self._thread.join()
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
        """Handles a client's message or its end. A client that sends anything else is disconnected."""
        client = self._clients[ticket]
        try:
            received = client.recv(_LONGEST)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        now = time.monotonic()
        message = _parsed(received, self.address.word)
        if message is not None and ticket not in self._turns:
            self._ask(ticket, message, now)
        elif message is not None and self._turns[ticket].request.kind is Kind.STAY:
            self._change(ticket, message, now)
        else:
            self._leave(ticket, now)

    def _ask(self, ticket: int, message: dict[str, Any], now: float) -> None:
        kind, task, rank = Kind(message["kind"]), str(message["task"]), float(message["rank"])
        request = QueueRequest(ticket, kind, task, rank, _need(message))
        self._turns[ticket] = _Turn(request, str(message["step"]), now)
        self._tell(self._rule.ask(request, now))
        if request.kind is Kind.STAY and self._turns[ticket].begun is None:
            self._is_short()

    def _change(self, ticket: int, message: dict[str, Any], now: float) -> None:
        promised, granted = self._rule.change(ticket, _need(message), now)
        with suppress(OSError):
            self._clients[ticket].send(GRANTED if promised else REFUSED)
        self._tell(granted)

    def _leave(self, ticket: int, now: float) -> None:
        client = self._clients.pop(ticket)
        self._selector.unregister(client)
        client.close()
        turn = self._turns.pop(ticket, None)
        if turn is None:
            return
        self._note(turn, now)
        self._tell(self._rule.leave(ticket, now))

    def _tell(self, granted: list[int]) -> None:
        now = time.monotonic()
        for ticket in granted:
            self._turns[ticket].begun = now
            # A client that has just ended is removed when the server reads from its connection.
            with suppress(OSError):
                self._clients[ticket].send(GRANTED)

    def _note(self, turn: _Turn, now: float) -> None:
        if self._log is None:
            return
        one = turn.request
        line: dict[str, Any] = {"task": one.task, "step": turn.step, "kind": one.kind}
        line |= {"resting_bytes": one.need.resting, "step_bytes": one.need.step, "promised_bytes": self._rule.promised}
        times = {"asked_s": turn.asked, "begun_s": turn.begun, "left_s": now}
        line |= {key: None if at is None else round(self._epoch + at, 3) for key, at in times.items()}
        with suppress(OSError):
            self._log.write(json.dumps(line) + "\n")


def _need(message: dict[str, Any]) -> Need:
    return Need(int(message["resting"]), int(message["step_bytes"]))


def _parsed(received: bytes, word: bytes) -> dict[str, Any] | None:
    """Returns the message after the secret word, or None for anything else."""
    if not received.startswith(word):
        return None
    try:
        message: dict[str, Any] = json.loads(received[len(word) :])
    except ValueError:
        return None
    return message
