"""Who gets a pool's next free builder, and what a holder judges next."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from typing import Any, cast

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device
from cuda_agent.core.records import Candidate, Task
from cuda_agent.judge.case import Case
from cuda_agent.pool.pool import Idle, _Lane, _Ready, next_for


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


def _lane(count: int, name: str, *, busy: bool = True) -> _Lane:
    """A holder for which so many candidates of a task are ready."""
    lane = _Lane(cast("Any", None))
    lane.busy = busy
    task = Task(name=name, source=name)
    for _ in range(count):
        ready = _Ready(Future(), Case(task, JudgeOptions(device=Device.CPU), Candidate(files={})), True)
        lane.ready.append(ready)
        lane.expected[ready.future] = task
        lane.waiting += 1
        lane.sees(task.key, 4)
    return lane


def test_a_holder_takes_its_own_first_then_the_last_of_another():
    mine, other = _lane(1, "mine", busy=False), _lane(2, "its")
    own, waits = mine.ready[0], list(other.ready)
    assert next_for(mine, [mine, other], 4) is own and mine.busy
    assert next_for(mine, [mine, other], 4) is None, "two of a task that it would have to prepare"
    mine.sees(waits[0].case.task.key, 4)
    assert next_for(mine, [mine, other], 4) is waits[1]
    assert (mine.waiting, other.waiting, len(other.ready)) == (2, 1, 1)
    assert waits[1].future in mine.expected and waits[1].future not in other.expected
    assert next_for(other, [mine, other], 4) is waits[0]


def test_a_long_queue_is_shared_by_who_does_not_know_the_task():
    mine, other = _lane(0, "mine", busy=False), _lane(3, "its")
    taken = next_for(mine, [mine, other], 4)
    assert taken is not None and taken.case.task.key in mine.tasks
    idle = _lane(3, "its", busy=False)
    assert next_for(_lane(0, "mine"), [idle], 4) is None, "it is about to begin itself"


def test_a_cancelled_candidate_moves_nothing():
    mine, other = _lane(0, "mine", busy=False), _lane(3, "its")
    del other.expected[other.ready[-1].future]
    other.waiting -= 1
    assert next_for(mine, [mine, other], 4) is not None
    assert (mine.waiting, other.waiting) == (0, 2) and not mine.expected
