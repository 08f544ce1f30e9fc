"""Processes that ask for turns on the device, and those that are stopped meanwhile."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from cuda_agent.bench import lane_server
from cuda_agent.bench import turns as rule
from cuda_agent.bench.lane import Lane, Size, Step
from cuda_agent.bench.lane_server import DRAIN_S, LaneServer
from cuda_agent.bench.turns import How, Turns
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


def _goes_on(count: Callable[[], int]) -> bool:
    """As `_moves`, on a machine that is busy."""
    end = time.monotonic() + 5
    while time.monotonic() < end:
        if _moves(count):
            return True
    return False


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
                assert _goes_on(count)
            with other.alone():
                assert not _moves(count)
            assert _goes_on(count)
            with mine.alone():
                assert not _moves(count), "its own, too"
                with mine.aside([pid]):
                    assert not _moves(count), "harmless in the thread that is alone"
            assert _goes_on(count)
            holding = other.alone()
            holding.__enter__()
            assert not _moves(count)
        assert _goes_on(count), "it is over"
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
            assert _goes_on(count)
            for _ in range(2):
                with hush():
                    assert stand_still([pid, *descendants(pid)]) and not _moves(count)
            assert _goes_on(count) and not stand_still([pid, *descendants(pid)])
        with mine.aside([pid]), other.alone() as hush:
            begin = time.monotonic()
            with hush():
                assert time.monotonic() - begin >= DRAIN_S, "what it has launched is over"
            assert not _moves(count)
        with other.alone() as hush:
            pass
    with pytest.raises(WorkerError), hush():
        pass


def _ask(server: LaneServer, how: How, needed: int, owner: int, step: str = "") -> socket.socket:
    """As the lane of a process with such an id."""
    client = connected_socket(server.address.path)
    assert client is not None
    client.settimeout(5)
    asked = {"how": how, "bytes": needed, "owner": owner, "pids": [os.getpid()], "task": "", "step": step}
    client.sendall(server.address.word + json.dumps(asked | {"rank": 0.0}).encode())
    return client


def test_who_waits_for_room_comes_when_there_is_more(tmp_path: Path) -> None:
    with LaneServer(tmp_path / "lane", Turns(room=10)) as server:
        server.set_room(3)
        with _ask(server, How.SHARED, 5, owner=1) as one, _ask(server, How.SHARED, 5, owner=2) as other:
            assert one.recv(1)
            other.settimeout(0.1)
            with pytest.raises(TimeoutError):
                other.recv(1)
            server.set_room(10)
            other.settimeout(5)
            assert other.recv(1), "though nobody has said anything"


def test_two_who_wait_for_themselves_wait_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule, "OVERTAKEN_S", 0.1)
    with (
        LaneServer(tmp_path / "lane", Turns(room=10)) as server,
        _ask(server, How.SHARED, 5, owner=1) as one,
        _ask(server, How.SHARED, 5, owner=2) as other,
    ):
        assert one.recv(1) and other.recv(1)
        with _ask(server, How.ASIDE, 5, owner=1) as mine, _ask(server, How.ASIDE, 5, owner=2) as others:
            assert mine.recv(1) and others.recv(1)


def test_what_was_launched_ends_before_the_clock_starts_and_a_context_launches_nothing(
    tmp_path: Path, counting: tuple[int, Callable[[], int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pid, count = counting
    monkeypatch.setattr(lane_server, "DRAIN_S", 2.0)

    def hushed_after(hush: Callable[[], AbstractContextManager[None]]) -> float:
        begin = time.monotonic()
        with hush():
            assert not _moves(count)
            return time.monotonic() - begin

    with LaneServer(tmp_path / "lane") as server:
        mine, other = Lane(server.address), Lane(server.address)
        with other.alone() as hush, mine.waking(pid):
            assert hushed_after(hush) < 1.9
        with mine.aside([pid]), other.alone() as hush:
            assert hushed_after(hush) > 2.0
            assert hushed_after(hush) < 1.9, "it stands still since"


def test_what_is_said_of_turns(tmp_path: Path, counting: tuple[int, Callable[[], int]]) -> None:
    pid, _ = counting
    log = tmp_path / "turns.jsonl"
    with LaneServer(tmp_path / "lane", log=log) as server:
        lane = Lane(server.address)
        lane.size = Size(100, 10, 1)
        with lane.shared(Step("verification", 5, 8, 3)):
            pass
        with lane.aside([pid], Step("baselines", 2)), Lane(server.address).alone(Step("profile")) as hush:
            for _ in range(2):
                with hush():
                    time.sleep(0.1)
        with _ask(server, How.ALONE, 7, owner=1, step="dying") as dying:
            assert dying.recv(1)
            dying.sendall(b"h")
            assert dying.recv(1)
            time.sleep(0.1)
        with lane.alone(Step("screening")):
            pass
    said = {turn["step"]: turn for turn in map(json.loads, log.read_text().splitlines())}
    needed = {"verification": 583, "baselines": 200, "profile": 0, "dying": 7, "screening": 0}
    assert {step: turn["bytes"] for step, turn in said.items()} == needed
    assert {step for step, turn in said.items() if "hushed_s" in turn} == {"profile", "dying", "screening"}
    alone, died = said["profile"], said["dying"]
    drained = alone["left_s"] - alone["begun_s"] - 0.8 * DRAIN_S
    assert 0.2 <= alone["hushed_s"] <= drained, "what it waited for those who stop doesn't count"
    assert 0.1 <= died["hushed_s"] <= died["left_s"] - died["begun_s"] + 0.01
    assert said["screening"]["hushed_s"] == 0.0


def test_what_was_stopped_goes_on_when_the_benchmark_ends(
    tmp_path: Path, counting: tuple[int, Callable[[], int]]
) -> None:
    pid, count = counting
    with LaneServer(tmp_path / "lane") as server:
        aside, alone = Lane(server.address).aside([pid]), Lane(server.address).alone()
        aside.__enter__()
        alone.__enter__()
        assert not _moves(count)
    assert _goes_on(count)


@pytest.mark.parametrize(("error", "shares"), [(PermissionError, True), (ProcessLookupError, False)])
def test_what_cannot_be_stopped_shares_but_not_what_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[OSError], shares: bool
) -> None:
    def refuse(_pid: int, _signal: int) -> None:
        raise error

    with LaneServer(tmp_path / "lane") as server:
        monkeypatch.setattr(lane_server.os, "kill", refuse)
        with Lane(server.address).aside([os.getpid()]):
            waiting = threading.Thread(target=lambda: Lane(server.address).alone().__enter__(), daemon=True)
            waiting.start()
            waiting.join(0.2 if shares else 5)
            assert waiting.is_alive() == shares
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


def test_at_the_end_no_other_thread_waits(tmp_path: Path) -> None:
    heard = []
    with LaneServer(tmp_path / "lane") as server:
        lane = Lane(server.address)

        def wait() -> None:
            for _ in range(2):
                with pytest.raises(WorkerError), lane.alone():
                    pass
                heard.append(1)

        with lane.shared():
            other = threading.Thread(target=wait, daemon=True)
            other.start()
            other.join(0.2)
            assert not heard, "it waits for what its own process shares"
            with lane.ending(), lane.shared():
                other.join(5)
                assert len(heard) == 2, "it may not ask again either"
        with lane.alone():
            pass
