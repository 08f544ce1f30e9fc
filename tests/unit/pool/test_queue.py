"""The queue of a device over its socket: turns, nesting, and requests that end with their process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cuda_agent.core.errors import WorkerError
from cuda_agent.pool.client import DeviceQueue
from cuda_agent.pool.rule import Need, QueueRule
from cuda_agent.pool.server import QueueServer
from cuda_agent.workspace.sockets import connected_socket

HOLDS = """
import sys, time
from pathlib import Path
from cuda_agent.pool.client import DeviceQueue
from cuda_agent.pool.server import Address
with DeviceQueue(Address(Path(sys.argv[1]), bytes.fromhex(sys.argv[2])), "other").clock("timing"):
    print("has it", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[QueueServer]:
    with QueueServer(tmp_path / "queue.sock", QueueRule(100), log=tmp_path / "turns.jsonl") as opened:
        yield opened


def waits(run: threading.Thread) -> bool:
    run.join(0.2)
    return run.is_alive()


def clock(queue: DeviceQueue, order: list[str], name: str) -> threading.Thread:
    def run() -> None:
        with queue.clock("timing"):
            order.append(name)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_clock_waits_for_device_steps(server: QueueServer, tmp_path: Path) -> None:
    one, other, order = DeviceQueue(server.address, "one"), DeviceQueue(server.address, "other"), list[str]()
    turn = contextlib.ExitStack()
    turn.enter_context(one.device("verification", 10))
    thread = clock(other, order, "timed")
    assert waits(thread) and not order
    turn.close()
    thread.join(10)
    assert order == ["timed"]
    log, limit = tmp_path / "turns.jsonl", time.monotonic() + 10
    while len(log.read_text().splitlines()) < 2 and time.monotonic() < limit:
        time.sleep(0.01)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(line["task"], line["kind"], line["step"]) for line in lines] == [
        ("one", "device", "verification"),
        ("other", "clock", "timing"),
    ]
    assert all(line["asked_s"] <= line["begun_s"] <= line["left_s"] <= time.time() + 1 for line in lines)
    assert lines[0]["step_bytes"] == lines[0]["promised_bytes"] == 10


def test_steps_within_a_clock_need_no_turn(server: QueueServer) -> None:
    queue = DeviceQueue(server.address, "one")
    with queue.clock("timing"), queue.device("baselines", 10), queue.host("imports"):
        pass
    with queue.device("verification"), queue.device("baselines"):
        pass


def test_a_turn_ends_with_its_process(server: QueueServer) -> None:
    command = [sys.executable, "-c", HOLDS, str(server.address.path), server.address.word.hex()]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "has it\n"
    order: list[str] = []
    thread = clock(DeviceQueue(server.address, "one"), order, "timed")
    assert waits(thread)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    thread.join(10)
    assert order == ["timed"]


def test_memory_is_promised_and_given_back(tmp_path: Path) -> None:
    short = threading.Event()
    with QueueServer(tmp_path / "queue.sock", QueueRule(100), is_short=short.set) as server:
        stay = DeviceQueue(server.address, "one").stay(Need(60, 20))
        assert not stay.change(Need(10, 20)) or stay.need == Need(10, 20)
        assert stay.change(Need(70, 20)) and not short.is_set()
        other = DeviceQueue(server.address, "other")
        thread = threading.Thread(target=lambda: other.stay(Need(20, 20)))
        thread.start()
        assert waits(thread) and short.wait(10)
        stay.close()
        stay.close()
        thread.join(10)
        assert not thread.is_alive()


def test_a_queue_that_ends_is_heard_of(tmp_path: Path) -> None:
    failed: list[WorkerError] = []
    with QueueServer(tmp_path / "queue.sock", QueueRule(None)) as server:
        queue, other = DeviceQueue(server.address, "one"), DeviceQueue(server.address, "other")
        # The other one never ends its step.
        turn = other.device("verification")
        turn.__enter__()

        def run() -> None:
            try:
                with queue.clock("timing"):
                    pass
            except WorkerError as error:
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        assert waits(thread)
    thread.join(10)
    assert len(failed) == 1
    with pytest.raises(WorkerError, match="queue"), queue.device("verification"):
        pass


def test_strangers_are_disconnected(server: QueueServer) -> None:
    for said in (b"no word", server.address.word + b"{", b""):
        stranger = connected_socket(server.address.path)
        assert stranger is not None
        if said:
            stranger.sendall(said)
            stranger.settimeout(10)
            assert stranger.recv(1) == b""
        stranger.close()
    with DeviceQueue(server.address, "one").clock("timing"):
        pass
    assert isinstance(stranger, socket.socket)
