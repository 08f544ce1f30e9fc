"""The channel: bounded JSON, one answer per request, deadlines, descriptors one way."""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from pydantic import Field

from cuda_agent.workers.channel import (
    MAX_DEPTH,
    MAX_ERROR_BYTES,
    MAX_FRAME_BYTES,
    ChannelClosed,
    DeadlinePassed,
    JudgeChannel,
    ProtocolViolation,
    RemoteFailure,
    WorkerChannel,
    decode,
    name_of,
)
from cuda_agent.workers.requests import Done, FaultKind, Many, WorkerAnswer, WorkerRequest

Pair = tuple[JudgeChannel, socket.socket]


class Number(WorkerAnswer):
    value: float
    parts: Many[int] = ()


class Double(WorkerRequest[Number]):
    x: float = Field(default=1.0)


class Rest(WorkerRequest[Done]):
    pass


@pytest.fixture
def pair() -> Iterator[Pair]:
    mine, theirs = socket.socketpair()
    with mine, theirs:
        yield JudgeChannel(mine), theirs


def frame(message: object) -> bytes:
    raw = json.dumps(message).encode()
    return struct.pack("<I", len(raw)) + raw


def answering(sock: socket.socket, answer: Callable[[WorkerChannel], None]) -> threading.Thread:
    thread = threading.Thread(target=lambda: answer(WorkerChannel(sock)))
    thread.start()
    return thread


def test_a_request_gets_its_answer(pair: Pair) -> None:
    judge, theirs = pair

    def worker(channel: WorkerChannel) -> None:
        channel.answer(0, Done())
        for _ in range(2):
            received = channel.receive()
            assert received.op == name_of(Double()) == "Double"
            channel.answer(received.id, Number(value=Double.model_validate(received.params).x * 2, parts=(1, 2)))

    thread = answering(theirs, worker)
    judge.hello(timeout_s=5)
    assert judge.request(Double(x=21), timeout_s=5) == Number(value=42, parts=(1, 2))
    assert judge.request(Double(), timeout_s=5).value == 2
    thread.join()


@pytest.mark.parametrize(
    "answer",
    [
        1,
        [],
        {},
        {"value": "1"},
        {"value": True},
        {"value": None},
        {"value": 10**400},
        {"value": 1, "more": 1},
        {"value": 1, "parts": [1.0]},
        {"value": 1, "parts": 3},
    ],
)
def test_an_answer_of_another_form_is_a_violation(pair: Pair, answer: object) -> None:
    judge, theirs = pair
    theirs.settimeout(5)
    thread = threading.Thread(target=lambda: (theirs.recv(1 << 16), theirs.sendall(frame({"id": 1, "ok": answer}))))
    thread.start()
    with pytest.raises(ProtocolViolation, match=r"^Double: "):
        judge.request(Double(), timeout_s=5)
    thread.join()


def test_nobody_sleeps_where_asked(pair: Pair) -> None:
    """The same answers, also those that come later than the spinning ends; an end and a deadline are seen as well."""
    judge, theirs = pair

    def worker(channel: WorkerChannel) -> None:
        for pause in (0.0, 0.05):
            request = channel.receive(spin_s=0.02)
            time.sleep(pause)
            channel.answer(request.id, Done())
        channel.receive(spin_s=5)
        theirs.close()

    thread = answering(theirs, worker)
    assert [judge.request(Rest(), timeout_s=5, spin_s=0.02) for _ in range(2)] == [Done(), Done()]
    with pytest.raises(ChannelClosed):
        judge.request(Rest(), timeout_s=5, spin_s=5)
    thread.join()


@pytest.mark.parametrize("spins", [True, False])
def test_a_deadline_ends_the_spinning(pair: Pair, spins: bool) -> None:
    begin, busy = time.monotonic(), time.thread_time()
    with pytest.raises(DeadlinePassed):
        pair[0].request(Rest(), timeout_s=0.3, spin_s=60.0 if spins else 0.0)
    assert time.monotonic() - begin < 5
    assert (time.thread_time() - busy > 0.05) is spins, "who doesn't sleep takes the processor"


def test_a_worker_spins_and_sleeps_again(pair: Pair) -> None:
    judge, theirs = pair
    busy: list[float] = []

    def worker(channel: WorkerChannel) -> None:
        for spin_s in (10.0, 0.0):
            begin = time.thread_time()
            request = channel.receive(spin_s=spin_s)
            busy.append(time.thread_time() - begin)
            channel.answer(request.id, Done())

    thread = answering(theirs, worker)
    for _ in range(2):
        time.sleep(0.3)
        judge.request(Rest(), timeout_s=5)
    thread.join()
    assert busy[0] > 0.05 > busy[1]


def test_a_descriptor_reaches_the_worker(pair: Pair) -> None:
    judge, theirs = pair

    def worker(channel: WorkerChannel) -> None:
        request = channel.receive()
        (descriptor,) = request.descriptors
        channel.answer(request.id, Number(value=float(os.pread(descriptor, 5, 0).decode())))
        os.close(descriptor)

    thread = answering(theirs, worker)
    memory = os.memfd_create("test")
    os.write(memory, b"0.125")
    assert judge.request(Double(), timeout_s=5, descriptors=(memory,)).value == 0.125
    os.close(memory)
    thread.join()


def test_an_error_is_named_and_its_message_bounded(pair: Pair) -> None:
    judge, theirs = pair

    def worker(channel: WorkerChannel) -> None:
        channel.fail(channel.receive().id, FaultKind.RAISED, "x" * 100_000 + "the end")

    thread = answering(theirs, worker)
    with pytest.raises(RemoteFailure) as caught:
        judge.request(Rest(), timeout_s=5)
    thread.join()
    assert caught.value.kind is FaultKind.RAISED
    assert caught.value.message.endswith("the end")
    assert len(caught.value.message) <= MAX_ERROR_BYTES


@pytest.mark.parametrize(
    "raw",
    [
        frame({"id": 7, "ok": {}}),
        frame({"id": True, "ok": {}}),
        frame({"id": 1}),
        frame({"id": 1, "ok": {}, "more": 1}),
        frame({"id": 1, "error": "text"}),
        frame({"id": 1, "error": {"kind": 3, "message": ""}}),
        frame({"id": 1, "error": {"kind": [], "message": "", "remedy": ""}}),
        frame({"id": 1, "error": {"kind": "died", "message": "", "remedy": ""}}),
        frame({"id": 1, "error": {"kind": "raised", "message": ""}}),
        frame([1]),
        struct.pack("<I", 3) + b"}{]",
        struct.pack("<I", MAX_FRAME_BYTES + 1),
        frame({"id": 1, "ok": float("nan")}),
    ],
)
def test_anything_but_the_answer_is_a_violation(pair: Pair, raw: bytes) -> None:
    judge, theirs = pair
    theirs.settimeout(5)
    thread = threading.Thread(target=lambda: (theirs.recv(1 << 16), theirs.sendall(raw)))
    thread.start()
    with pytest.raises(ProtocolViolation):
        judge.request(Rest(), timeout_s=5)
    thread.join()


def test_a_second_answer_is_noticed_at_the_next_request(pair: Pair) -> None:
    judge, theirs = pair

    def worker(channel: WorkerChannel) -> None:
        request = channel.receive()
        channel.answer(request.id, Done())
        channel.answer(request.id, Done())

    thread = answering(theirs, worker)
    assert judge.request(Rest(), timeout_s=5) == Done()
    thread.join()
    with pytest.raises(ProtocolViolation, match="without a request"):
        judge.request(Rest(), timeout_s=5)


def test_an_answer_sent_ahead_is_a_violation(pair: Pair) -> None:
    judge, theirs = pair
    theirs.sendall(frame({"id": 1, "ok": "PASSED"}))
    with pytest.raises(ProtocolViolation):
        judge.request(Rest(), timeout_s=5)


def test_silence_ends_at_the_deadline(pair: Pair) -> None:
    judge, _theirs = pair
    with pytest.raises(DeadlinePassed):
        judge.request(Rest(), timeout_s=0.05)


def test_a_dead_worker_is_noticed(pair: Pair) -> None:
    judge, theirs = pair
    theirs.close()
    with pytest.raises(ChannelClosed):
        judge.request(Rest(), timeout_s=5)


def test_depth_is_bounded() -> None:
    nested = "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)
    assert decode(nested.encode()) is not None
    for depth in (MAX_DEPTH + 2, 1_000_000):
        with pytest.raises(ProtocolViolation):
            decode(("[" * depth + "]" * depth).encode())
