"""Turns on the device: the rule, and processes that ask for them."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from cuda_agent.bench.lane import Lane, LaneServer, Turns
from cuda_agent.core.errors import WorkerError
from cuda_agent.workspace.sockets import connected_socket


def test_those_who_share_are_together_and_never_beside_one_alone() -> None:
    turns = Turns()
    assert turns.ask(1, alone=False, now=0) == [1]
    assert turns.ask(2, alone=False, now=1) == [2]
    assert turns.ask(3, alone=True, now=2) == []
    assert turns.leave(1, 3) == []
    assert turns.leave(2, 4) == [3]
    assert turns.ask(4, alone=False, now=5) == []
    assert turns.leave(3, 6) == [4]


def test_phases() -> None:
    turns = Turns(join_s=2)
    turns.ask(1, alone=False, now=0)
    for ticket in (2, 3):
        turns.ask(ticket, alone=True, now=1)
    assert turns.ask(4, alone=False, now=1.5) == [4], "the phase has just begun"
    assert turns.ask(5, alone=False, now=3) == [], "somebody waits to be alone"
    turns.leave(1, 4)
    assert turns.leave(4, 5) == [2]
    assert turns.ask(6, alone=True, now=6) == []
    assert turns.leave(2, 7) == [3], "all that waited, one after the other"
    assert turns.ask(7, alone=False, now=7) == []
    assert turns.leave(3, 8) == [5, 7], "then all that wait to share, before who came later to be alone"
    assert turns.leave(5, 9) == []
    assert turns.leave(7, 10) == [6]


def test_who_shares_for_long_keeps_the_phase_open_for_short_turns() -> None:
    turns = Turns(join_s=2)
    turns.ask(1, alone=False, now=0)
    turns.ask(2, alone=True, now=1)
    assert turns.ask(3, alone=False, now=3) == []
    assert turns.lengthen(1, 4) == [3]
    assert turns.ask(4, alone=False, long=True, now=5) == [], "it would make the phase longer"
    assert turns.ask(5, alone=False, now=5) == [5]
    assert turns.leave(1, 6) == turns.leave(3, 7) == []
    assert turns.leave(5, 8) == [2]


def test_who_shares_needs_room() -> None:
    turns = Turns(room=10)
    assert turns.ask(1, alone=False, needed=6, now=0) == [1]
    assert turns.ask(2, alone=False, needed=6, now=0) == []
    assert turns.ask(3, alone=False, needed=4, now=0) == [], "no overtaking"
    assert turns.leave(1, 1) == [2, 3]
    assert turns.ask(4, alone=False, needed=100, now=2) == turns.leave(2, 3) == []
    assert turns.leave(3, 4) == [4], "with nobody else, however much it needs"


def test_who_dies_waiting_is_forgotten() -> None:
    turns = Turns()
    turns.ask(1, alone=True, now=0)
    turns.ask(2, alone=True, now=0)
    turns.ask(3, alone=False, now=0)
    assert turns.leave(2, 1) == []
    assert turns.leave(1, 2) == [3]
    assert turns.seconds == {"alone": 2.0, "shared": 0.0, "idle": 0.0}


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
                with one.shared(long=True):
                    joined.set()

            threading.Thread(target=join, daemon=True).start()
            assert joined.wait(5)


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
