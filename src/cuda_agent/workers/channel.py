"""Bounded JSON messages between the judge and one worker, over a socket pair that only these two hold.

A frame is a 4-byte little-endian length and that many bytes of JSON. The judge sends `{id, op, params}` (see
`workers.requests`); the worker answers exactly once with `{id, ok}` or `{id, error: {kind, message, remedy}}`. Whatever
else the worker sends (another id, two answers, an answer of another form, a frame that is too long or too deep, a
number beyond 64 bits, something that isn't JSON) is a protocol violation. File descriptors (the memory of CPU tensors)
travel from the judge to the worker only. Nothing is ever unpickled.
"""

from __future__ import annotations

import array
import json
import math
import re
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from cuda_agent.workers.requests import A, Done, FaultKind, WorkerAnswer, WorkerRequest

MAX_FRAME_BYTES = 8 << 20
MAX_DEPTH = 64
#: commas and opening brackets, so that a frame can't become gigabytes of small objects.
MAX_VALUES = 1 << 20
MAX_DESCRIPTORS = 8
MAX_ERROR_BYTES = 4096

_HEADER = struct.Struct("<I")
#: an escape of half a UTF-16 pair, which alone is no character and can't be written anywhere.
_HALF_CHARACTER = re.compile(rb"\\u[dD][89a-fA-F]")
#: failures that a worker may report.
REPORTED = (
    FaultKind.LOAD, FaultKind.STRUCTURE, FaultKind.RAISED, FaultKind.OUT_OF_MEMORY, FaultKind.DEVICE,
    FaultKind.TASK,
)  # fmt: skip


def name_of(request: WorkerRequest[Any]) -> str:
    """Returns the name of the operation that a request asks for."""
    return type(request).__name__


class ChannelError(Exception):
    """Base of a channel's failures. They are internal to the judge: `process.py` turns them into faults."""


class ChannelClosed(ChannelError):
    """The other side has ended."""


class DeadlinePassed(ChannelError):
    """No whole answer came within the request's time."""


class ProtocolViolation(ChannelError):
    """The worker sent a forbidden message."""


class RemoteFailure(ChannelError):
    """The worker answered that the operation failed. `message` and `remedy` have at most 4 KiB."""

    def __init__(self, kind: FaultKind, message: str, remedy: str) -> None:
        self.kind, self.message, self.remedy = kind, message, remedy
        super().__init__(f"{kind}: {message}")


def decode(raw: bytes) -> Any:
    """Decodes JSON of at most MAX_DEPTH levels and MAX_VALUES values, with integers of 64 bits, finite numbers and text
    of whole characters. Raises ProtocolViolation."""
    if sum(raw.count(sign) for sign in (b",", b"[", b"{")) > MAX_VALUES:
        raise ProtocolViolation(f"more than {MAX_VALUES} values")
    try:
        value = json.loads(raw.decode(), parse_constant=_no_constant, parse_int=_bounded_int, parse_float=_finite_float)
        if _HALF_CHARACTER.search(raw):
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ProtocolViolation(f"not JSON: {error}"[:400]) from None
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent if isinstance(parent, list) else ())
            if isinstance(child, dict | list)
        ]
        if not level:
            return value
    raise ProtocolViolation(f"nested deeper than {MAX_DEPTH}")


def spin(sock: socket.socket, until: float) -> None:
    """Polls without a pause until there is something to read, or until the time (monotonic). The next read handles it,
    also an end or an error."""
    timeout = sock.gettimeout()
    # With a timeout Python would sleep before it polls.
    sock.setblocking(False)
    try:
        while time.monotonic() < until:
            try:
                sock.recv(1, socket.MSG_PEEK)
            except (BlockingIOError, InterruptedError):
                continue
            except OSError:
                pass
            return
    finally:
        sock.settimeout(timeout)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _bounded_int(text: str) -> int:
    value = int(text) if len(text) <= 20 else None
    if value is None or not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"an integer of {len(text)} digits")
    return value


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is too large")
    return value


def _encode(message: dict[str, Any]) -> bytes:
    raw = json.dumps(message, allow_nan=False, separators=(",", ":")).encode()
    if len(raw) > MAX_FRAME_BYTES:
        raise ValueError(f"a message of {len(raw)} bytes exceeds {MAX_FRAME_BYTES}")
    return _HEADER.pack(len(raw)) + raw


class JudgeChannel:
    """The judge's end: one request at a time, each with a deadline in seconds."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._next_id = 0

    def request(
        self,
        request: WorkerRequest[A],
        *,
        timeout_s: float,
        descriptors: Sequence[int] = (),
        spin_s: float = 0.0,
    ) -> A:
        """Returns the worker's answer. For `spin_s` seconds this thread waits without sleep, since a virtual machine's
        processor takes some 100 µs to wake up, with much variation.

        Raises RemoteFailure (it answered with an error), ChannelClosed, DeadlinePassed, ProtocolViolation.
        """
        self._next_id += 1
        op = name_of(request)
        deadline = time.monotonic() + timeout_s
        self._refuse_unasked()
        frame = _encode({"id": self._next_id, "op": op, "params": request.model_dump()})
        try:
            self._socket.settimeout(timeout_s)
            if descriptors:
                sent = socket.send_fds(self._socket, [frame], list(descriptors))
                frame = frame[sent:]
            if frame:
                self._socket.sendall(frame)
        except TimeoutError:
            raise DeadlinePassed(f"{op}: the worker doesn't read its requests") from None
        except OSError as error:
            raise ChannelClosed(f"{op}: {error.strerror}") from None
        if spin_s > 0:
            spin(self._socket, min(deadline, time.monotonic() + spin_s))
        answer: A = self._answer(self._next_id, op, deadline, request.answer)
        return answer

    def hello(self, *, timeout_s: float) -> None:
        """Waits for the worker's first message, id 0, sent when it is ready."""
        self._answer(0, "hello", time.monotonic() + timeout_s, Done)

    def close(self) -> None:
        self._socket.close()

    def _answer(self, wanted: int, op: str, deadline: float, form: type[WorkerAnswer]) -> Any:
        (length,) = _HEADER.unpack(self._exactly(_HEADER.size, op, deadline))
        if length > MAX_FRAME_BYTES:
            raise ProtocolViolation(f"{op}: a frame of {length} bytes")
        try:
            message = decode(self._exactly(length, op, deadline))
        except ProtocolViolation as violation:
            raise ProtocolViolation(f"{op}: {violation}") from None
        if not isinstance(message, dict) or message.get("id") != wanted or isinstance(message.get("id"), bool):
            raise ProtocolViolation(f"{op}: an answer to another request")
        if set(message) == {"id", "ok"}:
            try:
                return form.model_validate(message["ok"])
            except ValidationError as invalid:
                first = invalid.errors()[0]
                where = ".".join(map(str, first["loc"]))
                raise ProtocolViolation(f"{op}: {where}: {first['msg']}"[:400]) from None
        error = message.get("error")
        if set(message) != {"id", "error"} or not isinstance(error, dict):
            raise ProtocolViolation(f"{op}: an answer without result")
        kind, text, remedy = error.get("kind"), error.get("message"), error.get("remedy")
        if kind not in REPORTED or not isinstance(text, str) or not isinstance(remedy, str):
            raise ProtocolViolation(f"{op}: a malformed error")
        raise RemoteFailure(FaultKind(kind), text[-MAX_ERROR_BYTES:], remedy[-MAX_ERROR_BYTES:])

    def _exactly(self, count: int, op: str, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < count:
            left = deadline - time.monotonic()
            if left <= 0:
                raise DeadlinePassed(op)
            try:
                self._socket.settimeout(left)
                # recv takes no ancillary data, so the kernel drops descriptors that a worker sends.
                part = self._socket.recv(min(count - len(data), 1 << 20))
            except TimeoutError:
                raise DeadlinePassed(op) from None
            except OSError as error:
                raise ChannelClosed(f"{op}: {error.strerror}") from None
            if not part:
                raise ChannelClosed(f"{op}: no answer")
            data += part
        return bytes(data)

    def _refuse_unasked(self) -> None:
        try:
            self._socket.settimeout(0)
            waiting = self._socket.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            raise ChannelClosed(str(error.strerror)) from None
        if waiting:
            raise ProtocolViolation("a message without a request")
        raise ChannelClosed("the worker is gone")


@dataclass(frozen=True)
class Received:
    """A request as a worker reads it. The operation that takes the `descriptors` closes them."""

    id: int
    op: str
    params: dict[str, Any]
    descriptors: tuple[int, ...]


class WorkerChannel:
    """The worker's end. It blocks without a deadline, and ends when the judge's end closes."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._socket.setblocking(True)

    def receive(self, *, spin_s: float = 0.0) -> Received:
        """Returns the next request. For `spin_s` seconds this thread waits without sleep. Raises ChannelClosed when the
        judge has ended."""
        if spin_s > 0:
            spin(self._socket, time.monotonic() + spin_s)
        header, descriptors = self._first(_HEADER.size)
        (length,) = _HEADER.unpack(header)
        message = json.loads(self._rest(b"", length))
        return Received(message["id"], message["op"], message["params"], descriptors)

    def answer(self, request_id: int, answer: WorkerAnswer) -> None:
        self._send({"id": request_id, "ok": answer.model_dump()})

    def fail(self, request_id: int, kind: FaultKind, message: str, remedy: str = "") -> None:
        text = message.encode(errors="replace")[-MAX_ERROR_BYTES:].decode(errors="ignore")
        self._send({"id": request_id, "error": {"kind": kind, "message": text, "remedy": remedy}})

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._socket.sendall(_encode(message))
        except OSError as error:
            raise ChannelClosed(str(error.strerror)) from None

    def _first(self, count: int) -> tuple[bytes, tuple[int, ...]]:
        size = array.array("i").itemsize * MAX_DESCRIPTORS
        data, ancillary, _, _ = self._socket.recvmsg(count, socket.CMSG_SPACE(size))
        descriptors = array.array("i")
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors.frombytes(payload[: len(payload) - len(payload) % descriptors.itemsize])
        return self._rest(data, count), tuple(descriptors)

    def _rest(self, data: bytes, count: int) -> bytes:
        parts = bytearray(data)
        while len(parts) < count:
            part = self._socket.recv(count - len(parts))
            if not part:
                raise ChannelClosed("the judge is gone")
            parts += part
        return bytes(parts)
