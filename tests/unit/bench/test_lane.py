"""Processes that ask for turns on the device, and those that are stopped meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cuda_agent.bench.lane import DRAIN_S, Lane, LaneServer
from cuda_agent.bench.turns import Turns
from cuda_agent.core.errors import WorkerError
from cuda_agent.workspace.process import descendants, stand_still
from cuda_agent.workspace.sockets import connected_socket


def test_one_alone_gives_up_what_it_shared(tmp_path: Path) -> None:
    with LaneServer(tmp_path / "lane") as server:
        one, two = Lane(server.address), Lane(server.address)
        events: list[str] = []

        def other() -> None:
            with two.alone():
                events.append("other alone")
                time.sleep(0.1)
                events.append("other done")

        thread = threading.Thread(target=other)
        with one.shared(), one.shared():
            thread.start()
            time.sleep(0.1)
            assert not events
            with one.alone():
                events.append("alone")
                with one.shared():
                    events.append("my own work")
        thread.join(5)
    assert sorted([events[:2], events[2:]]) == [["alone", "my own work"], ["other alone", "other done"]]


def test_a_thread_joins_what_its_process_shares(tmp_path: Path) -> None:
    """Else one that waits for another thread of its own would wait for the device, and the device for it."""
    with LaneServer(tmp_path / "lane", Turns(join_s=0)) as server:
        one, two = Lane(server.address), Lane(server.address)
        waiting = threading.Thread(target=lambda: two.alone().__enter__(), daemon=True)
        with one.shared():
            waiting.start()
            time.sleep(0.1)
            joined = threading.Event()

            def join() -> None:
                with one.shared():
                    joined.set()

            threading.Thread(target=join, daemon=True).start()
            assert joined.wait(5)


@pytest.fixture(params=["itself", "below"])
def counting(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[int, Callable[[], int]]]:
    """A process that counts without end, or has one below it that does, as a sandbox has; and how far it is."""
    file = tmp_path / "count"
    code = """
import itertools, os, time
for number in itertools.count():
    os.pwrite(1, b"%12d" % number, 0)
    time.sleep(0.001)
"""
    command = [sys.executable, "-c", code]
    if request.param == "below":
        command = [sys.executable, "-c", f"import subprocess; subprocess.run({command})"]
    with file.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, start_new_session=True)
    try:
        while not file.read_text():
            time.sleep(0.01)
        yield process.pid, lambda: int(file.read_text() or 0)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _moves(count: Callable[[], int]) -> bool:
    before = count()
    time.sleep(0.1)
    return count() > before


def test_processes_that_are_aside_stand_still_while_somebody_is_alone(
    tmp_path: Path, counting: tuple[int, Callable[[], int]]
) -> None:
    pid, count = counting
    log = tmp_path / "turns.jsonl"
    with LaneServer(tmp_path / "lane", log=log) as server:
        mine, other = Lane(server.address), Lane(server.address)
        mine.task = other.task = "a task"
        with mine.aside([pid]):
            with other.shared():
                assert _moves(count)
            with other.alone():
                assert not _moves(count)
            assert _moves(count)
            with mine.alone():
                assert not _moves(count), "its own, too"
                with mine.aside([pid]):
                    assert not _moves(count), "harmless in the thread that is alone"
            assert _moves(count)
            holding = other.alone()
            holding.__enter__()
            assert not _moves(count)
        assert _moves(count), "it is over"
        holding.__exit__(None, None, None)
    turns = [json.loads(line) for line in log.read_text().splitlines()]
    assert [turn["how"] for turn in turns] == ["shared", "alone", "alone", "aside", "alone"]
    assert all(turn["task"] == "a task" and turn["asked_s"] <= turn["begun_s"] <= turn["left_s"] for turn in turns)


def test_contexts_are_made_while_nothing_is_on_the_clock(
    tmp_path: Path, counting: tuple[int, Callable[[], int]]
) -> None:
    pid, count = counting
    with LaneServer(tmp_path / "lane") as server:
        mine, other = Lane(server.address), Lane(server.address)
        with other.alone() as hush, mine.waking(pid):
            assert _moves(count)
            for _ in range(2):
                with hush():
                    assert stand_still([pid, *descendants(pid)]) and not _moves(count)
            assert _moves(count) and not stand_still([pid, *descendants(pid)])
        with mine.aside([pid]), other.alone() as hush:
            begin = time.monotonic()
            with hush():
                assert time.monotonic() - begin >= DRAIN_S, "what it has launched is over"
            assert not _moves(count)
        with other.alone() as hush:
            pass
    with pytest.raises(WorkerError), hush():
        pass


def test_what_was_stopped_goes_on_when_the_benchmark_ends(
    tmp_path: Path, counting: tuple[int, Callable[[], int]]
) -> None:
    pid, count = counting
    with LaneServer(tmp_path / "lane") as server:
        aside, alone = Lane(server.address).aside([pid]), Lane(server.address).alone()
        aside.__enter__()
        alone.__enter__()
        assert not _moves(count)
    assert _moves(count)


def test_what_cannot_be_stopped_shares(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with LaneServer(tmp_path / "lane") as server:
        with Lane(server.address).aside([gone.pid]):
            waiting = threading.Thread(target=lambda: Lane(server.address).alone().__enter__(), daemon=True)
            waiting.start()
            waiting.join(0.2)
            assert waiting.is_alive()
        waiting.join(5)
        assert not waiting.is_alive()


def test_whoever_waits_hears_of_the_end(tmp_path: Path) -> None:
    server = LaneServer(tmp_path / "lane")
    lane, other = Lane(server.address), Lane(server.address)
    heard: list[BaseException] = []

    def wait() -> None:
        try:
            with other.alone():
                pass
        except WorkerError as error:
            heard.append(error)

    thread = threading.Thread(target=wait)
    with server:
        holding = lane.alone()
        holding.__enter__()
        thread.start()
        time.sleep(0.1)
    thread.join(5)
    assert len(heard) == 1
    with pytest.raises(WorkerError), other.shared():
        pass


def test_a_stranger_is_not_heard(tmp_path: Path) -> None:
    with LaneServer(tmp_path / "lane") as server:
        stranger = connected_socket(server.address.path)
        assert stranger is not None
        stranger.sendall(b"a" * 17)
        assert stranger.recv(1) == b""
        with Lane(server.address).alone():
            pass
