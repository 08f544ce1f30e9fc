"""Requests turns on a device from the device's queue."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

from cuda_agent.core.errors import WorkerError
from cuda_agent.pool.rule import Kind, Need
from cuda_agent.pool.server import GRANTED, Address
from cuda_agent.workspace.sockets import connected_socket


class DeviceQueue:
    """The requests of one task. Every method raises WorkerError where the queue has ended.

    While a thread of this process holds the clock, the other requests of this task are granted at once: they are part
    of the timed work or of its preparation.
    """

    def __init__(self, address: Address, task: str = "", rank: float = 0.0) -> None:
        """`task` tells tasks apart; `rank` is the time at which it began, in seconds since the epoch."""
        self._address, self._task, self._rank = address, task[:200], rank
        self._timing = False

    def host(self, step: str) -> AbstractContextManager[None]:
        """Imports or compilers run in this block."""
        return self._turn(Kind.HOST, step)

    def device(self, step: str, step_bytes: int = 0) -> AbstractContextManager[None]:
        """This block computes on the device beside others and holds at most `step_bytes` more of its memory."""
        return self._turn(Kind.DEVICE, step, step_bytes)

    @contextmanager
    def clock(self, step: str) -> Iterator[None]:
        """This block has the device alone."""
        with self._turn(Kind.CLOCK, step):
            self._timing = True
            try:
                yield
            finally:
                self._timing = False

    def stay(self, need: Need, step: str = "stay") -> "Stay":
        """Waits until the task may stay on the device with these bytes. `step` is its name in the log."""
        return Stay(self, self._granted(Kind.STAY, step[:500], need), need)

    @contextmanager
    def _turn(self, kind: Kind, step: str, step_bytes: int = 0) -> Iterator[None]:
        if self._timing:
            yield
            return
        ticket = self._granted(kind, step, Need(0, step_bytes))
        try:
            yield
        finally:
            ticket.close()

    def _granted(self, kind: Kind, step: str, need: Need) -> socket.socket:
        ticket = connected_socket(self._address.path)
        if ticket is None:
            raise _ended()
        try:
            self.send(ticket, {"kind": kind, "step": step, "task": self._task, "rank": self._rank}, need)
            if ticket.recv(1) == GRANTED:
                return ticket
        except OSError:
            pass
        except BaseException:
            ticket.close()
            raise
        ticket.close()
        raise _ended()

    def send(self, ticket: socket.socket, message: dict[str, Any], need: Need) -> None:
        """Sends a message with the secret word. Raises OSError."""
        message |= {"resting": need.resting, "step_bytes": need.step}
        ticket.sendall(self._address.word + json.dumps(message).encode())


class Stay:
    """A task's promise of memory, until `close`."""

    def __init__(self, queue: DeviceQueue, ticket: socket.socket, need: Need) -> None:
        self._queue, self._ticket, self.need = queue, ticket, need
        self._lock = threading.Lock()

    def change(self, need: Need) -> bool:
        """Asks for other bytes. Returns whether they are promised; if not, the promise stays as it was."""
        with self._lock:
            try:
                self._queue.send(self._ticket, {}, need)
                answer = self._ticket.recv(1)
            except OSError:
                answer = b""
        if not answer:
            raise _ended()
        if answer == GRANTED:
            self.need = need
        return answer == GRANTED

    def close(self) -> None:
        """Gives the promise back. A second call does nothing."""
        with suppress(OSError):
            self._ticket.close()


def _ended() -> WorkerError:
    return WorkerError(
        "The queue of the device has ended", "Run the command again; a benchmark continues with --resume"
    )
