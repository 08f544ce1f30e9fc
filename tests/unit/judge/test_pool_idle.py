"""Who gets a pool's next free builder."""

from __future__ import annotations

import threading
import time

from cuda_agent.judge.pool import Idle


def test_what_is_judged_goes_before_what_is_compiled_ahead():
    idle, order, limit = Idle(["builder"]), [], time.monotonic() + 30

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
    idle, done = Idle(["a", "b"]), []

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
