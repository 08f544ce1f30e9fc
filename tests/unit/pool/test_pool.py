"""Who gets a pool's next free builder, and which host a request goes to."""

from __future__ import annotations

import threading
import time
from typing import Any, cast

from cuda_agent.core.records import Task
from cuda_agent.pool.builders import Builders
from cuda_agent.pool.pool import Pool, _Host


def test_what_is_judged_goes_before_what_is_compiled_ahead():
    idle, order, limit = Builders(["builder"]), [], time.monotonic() + 30

    def want(name: str, first: bool) -> None:
        with idle.one(first=first) as builder:
            assert builder == "builder"
            order.append(name)

    with idle.one(first=True):
        threads = [threading.Thread(target=want, args=(f"ahead {i}", False)) for i in range(4)]
        threads += [threading.Thread(target=want, args=(f"judged {i}", True)) for i in range(3)]
        for thread in threads:
            thread.start()
        while idle.waiting < len(threads) and time.monotonic() < limit:
            time.sleep(0.001)
        assert idle.waiting == len(threads)
    for thread in threads:
        thread.join(30)
    assert [name.split()[0] for name in order] == ["judged"] * 3 + ["ahead"] * 4


def test_several_builders_serve_both():
    idle, done = Builders(["a", "b"]), []

    def want(first: bool) -> None:
        for _ in range(200):
            with idle.one(first=first) as builder:
                done.append(builder)

    threads = [threading.Thread(target=want, args=(first,)) for first in (True, False, True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(done) == 800 and set(done) <= {"a", "b"} and idle.waiting == 0


class _Unstarted(Pool):
    """A pool of two devices with two hosts each, none of which is a process."""

    def __init__(self) -> None:
        self._closed = False
        self.hosts = [_Host(cast("Any", None), device, cast("Any", None)) for device in (0, 0, 1, 1)]

    def places(self, *names: str) -> list[int]:
        return [self.hosts.index(self._choose(Task(name=name, source=name))) for name in names]


def test_a_new_task_goes_to_the_device_with_the_fewest_requests() -> None:
    assert _Unstarted().places("a", "b", "c", "d") == [0, 2, 1, 3]


def test_a_task_stays_with_its_host_until_many_wait_there() -> None:
    pool = _Unstarted()
    assert pool.places("a", "a", "a") == [0, 0, 0]
    assert pool.places("a") == [2], "a host of the other device is idle"
    assert pool.places("a", "a") == [2, 2] and pool.places("b") == [1]


def test_a_reserved_host_serves_its_task_alone() -> None:
    pool = _Unstarted()
    for host in pool.hosts[1:]:
        host.reserved = True
    assert pool.places("a", "b", "c") == [0, 0, 0] and pool.hosts[0].tasks[-1] == Task(name="c", source="c").key
