"""The rule of the broker, by simulation: what never happens, and that every task comes to its end."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_agent.pool.rule import JOIN_S, PATIENCE_S, Kind, Need, QueueRequest, QueueRule

NOTHING = Need()


def ask(
    rule: QueueRule,
    ticket: int,
    kind: Kind,
    task: str = "",
    *,
    rank: float = 0.0,
    need: Need = NOTHING,
    now: float = 0.0,
) -> list[int]:
    return rule.ask(QueueRequest(ticket, kind, task or str(ticket), rank, need), now)


def test_a_clock_is_alone_and_device_steps_are_not() -> None:
    rule = QueueRule(None)
    assert ask(rule, 1, Kind.DEVICE) == [1] and ask(rule, 2, Kind.DEVICE) == [2]
    assert ask(rule, 3, Kind.CLOCK) == []
    assert rule.leave(1, 1.0) == [] and rule.leave(2, 2.0) == [3]
    assert ask(rule, 4, Kind.DEVICE) == [] and ask(rule, 5, Kind.CLOCK) == []
    assert rule.leave(3, 3.0) == [4], "the clock came after the device step had begun to wait"
    assert rule.leave(4, 4.0) == [5]


def test_clocks_that_wait_run_one_after_the_other() -> None:
    rule = QueueRule(None)
    ask(rule, 1, Kind.DEVICE)
    for ticket in (2, 3):
        assert ask(rule, ticket, Kind.CLOCK, rank=-ticket) == []
    assert rule.leave(1, 1.0) == [3], "the oldest task first"
    assert ask(rule, 4, Kind.DEVICE) == []
    assert rule.leave(3, 2.0) == [2] and rule.leave(2, 3.0) == [4]


def test_device_steps_may_join_for_a_while() -> None:
    rule = QueueRule(None)
    ask(rule, 1, Kind.DEVICE, "a", now=0.0)
    ask(rule, 2, Kind.CLOCK, "b", now=0.1)
    assert ask(rule, 3, Kind.DEVICE, "c", now=JOIN_S / 2) == [3]
    assert ask(rule, 4, Kind.DEVICE, "d", now=JOIN_S + 1) == []
    assert ask(rule, 5, Kind.DEVICE, "a", now=JOIN_S + 1) == [5], "a task that is at work gets its other step"


def test_host_steps_take_slots_and_on_a_cpu_the_device() -> None:
    rule = QueueRule(None, host_slots=1)
    assert ask(rule, 1, Kind.CLOCK) == [1]
    assert ask(rule, 2, Kind.HOST) == [2] and ask(rule, 3, Kind.HOST) == []
    assert rule.leave(2, 1.0) == [3]
    rule = QueueRule(None, shares_cores=True)
    assert ask(rule, 1, Kind.CLOCK) == [1] and ask(rule, 2, Kind.HOST) == []
    assert rule.leave(1, 1.0) == [2]


def test_memory_is_promised() -> None:
    rule = QueueRule(100)
    assert ask(rule, 1, Kind.STAY, "a", need=Need(20, 30)) == [1]
    assert ask(rule, 2, Kind.STAY, "b", need=Need(20, 40)) == [2]
    assert ask(rule, 3, Kind.STAY, "c", rank=1, need=Need(30, 10)) == [], "30 + 40 would not be left for b's step"
    assert ask(rule, 5, Kind.DEVICE, "a", need=Need(0, 30)) == [5] and rule.promised == 70
    assert ask(rule, 6, Kind.DEVICE, "b", need=Need(0, 40)) == []
    assert rule.leave(5, 1.0) == [6]
    assert rule.leave(1, 2.0) == [3]


def test_a_large_task_is_overtaken_for_a_while() -> None:
    rule = QueueRule(100)
    assert ask(rule, 1, Kind.STAY, "a", need=Need(20, 40)) == [1]
    assert ask(rule, 2, Kind.STAY, "b", rank=1, need=Need(50, 10)) == []
    assert ask(rule, 3, Kind.STAY, "c", rank=2, need=Need(1, 1), now=PATIENCE_S - 1) == [3]
    assert ask(rule, 4, Kind.STAY, "d", rank=3, need=Need(1, 1), now=PATIENCE_S + 1) == []
    assert rule.leave(1, PATIENCE_S + 2) == [2, 4]


def test_one_that_needs_the_whole_card_is_not_overtaken() -> None:
    rule = QueueRule(100)
    assert ask(rule, 1, Kind.STAY, "a", need=Need(20, 40)) == [1]
    assert ask(rule, 2, Kind.STAY, "huge", rank=1, need=Need(1 << 60)) == []
    assert ask(rule, 3, Kind.STAY, "c", rank=2, need=Need(1, 1)) == []


def test_a_task_that_is_too_large_has_the_card_alone() -> None:
    rule = QueueRule(100)
    assert ask(rule, 1, Kind.STAY, "small", need=Need(10, 10)) == [1]
    assert ask(rule, 2, Kind.STAY, "huge", need=Need(1 << 60)) == []
    assert rule.leave(1, 1.0) == [2]
    assert ask(rule, 3, Kind.DEVICE, "huge", need=Need(0, 500)) == [3]
    assert ask(rule, 4, Kind.STAY, "small", need=Need(10, 10)) == []


def test_a_promise_changes_only_where_it_fits() -> None:
    rule = QueueRule(100)
    ask(rule, 1, Kind.STAY, "a", need=Need(50, 10))
    ask(rule, 2, Kind.STAY, "b", need=Need(20, 20))
    ask(rule, 3, Kind.STAY, "c", need=Need(30, 10))
    assert rule.change(1, Need(70, 20), 0.0) == (False, []) and rule.promised == 70
    assert rule.change(1, Need(20, 20), 0.0) == (True, [3]) and rule.promised == 70


Step = tuple[Kind, int, float]


class Simulation:
    """Tasks that stay on a device and take steps, a few at work at a time; checks the invariants at each event."""

    def __init__(self, card: int, tasks: list[tuple[Need, list[Step]]], jobs: int) -> None:
        self.rule, self.card, self.tasks = QueueRule(card), card, tasks
        self.now, self.done = 0.0, 0
        self._events: list[tuple[float, int, Any]] = []
        self._waiting: dict[int, Iterator[Any]] = {}
        self._held: dict[int, QueueRequest] = {}
        self._requests: dict[int, QueueRequest] = {}
        self._tickets = iter(range(10**9))
        self._left = list(enumerate(tasks))
        for _ in range(jobs):
            self._begin()

    def run(self) -> float:
        while self._events:
            self.now, _, action = heapq.heappop(self._events)
            action()
            self._check()
        return self.now

    def _begin(self) -> None:
        if self._left:
            self._advance(self._task(*self._left.pop(0)))

    def _task(self, number: int, task: tuple[Need, list[Step]]) -> Iterator[Any]:
        need, steps = task
        rank = self.now
        stay = yield QueueRequest(next(self._tickets), Kind.STAY, str(number), rank, need)
        for kind, size, seconds in steps:
            needed = Need(0, size if kind is Kind.DEVICE else 0)
            ticket = yield QueueRequest(next(self._tickets), kind, str(number), rank, needed)
            yield seconds
            self._leave(ticket)
        self._leave(stay)
        self.done += 1
        self._begin()

    def _advance(self, task: Iterator[Any], value: Any = None) -> None:
        try:
            asked = task.send(value)  # type: ignore[attr-defined]
        except StopIteration:
            return
        if isinstance(asked, QueueRequest):
            self._waiting[asked.ticket], self._requests[asked.ticket] = task, asked
            self._granted(self.rule.ask(asked, self.now))
        else:
            self._at(asked, lambda: self._advance(task))

    def _leave(self, ticket: int) -> None:
        self._held.pop(ticket)
        self._granted(self.rule.leave(ticket, self.now))

    def _granted(self, tickets: list[int]) -> None:
        for ticket in tickets:
            task = self._waiting.pop(ticket)
            self._held[ticket] = self._requests[ticket]
            self._at(0.0, lambda task=task, ticket=ticket: self._advance(task, ticket))

    def _at(self, seconds: float, action: Any) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._tickets), action))

    def _check(self) -> None:
        held = list(self._held.values())
        clocks = [one for one in held if one.kind is Kind.CLOCK]
        steps = [one for one in held if one.kind is Kind.DEVICE]
        stays = [one for one in held if one.kind is Kind.STAY]
        assert len(clocks) <= 1 and not (clocks and steps)
        used = sum(one.need.resting for one in stays) + sum(one.need.step for one in steps)
        assert used <= self.card or len(stays) == 1, "no task finds too little memory because of another"
        assert self.rule.promised == used


steps = st.lists(
    st.tuples(st.sampled_from([Kind.HOST, Kind.DEVICE, Kind.CLOCK]), st.integers(0, 60), st.floats(0.1, 9.0)),
    max_size=6,
)
needs = st.builds(Need, resting=st.integers(0, 90), step=st.just(60))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(needs, steps), min_size=1, max_size=12), st.integers(1, 6))
def test_every_task_ends_and_the_invariants_hold(tasks: list[tuple[Need, list[Step]]], jobs: int) -> None:
    simulation = Simulation(100, tasks, jobs)
    simulation.run()
    assert simulation.done == len(tasks)


def test_a_suite_takes_little_more_than_its_clocks_and_phases() -> None:
    """Durations as on a GPU: imports, admission, baselines, a screening, a verification, a timing."""
    random.seed(0)

    def task() -> tuple[Need, list[Step]]:
        size = random.choice([1, 1, 2, 4])
        each = [(Kind.HOST, 0, 5.0), (Kind.DEVICE, size, 3.0), (Kind.DEVICE, size, 8.0), (Kind.CLOCK, 0, 1.0)]
        each += [(Kind.DEVICE, 3 * size, 2.0), (Kind.CLOCK, 0, 2.5), (Kind.DEVICE, size, 0.5)]
        spread = [(kind, need, seconds * random.uniform(0.6, 1.6)) for kind, need, seconds in each]
        return Need(4 + size, 3 * size), spread

    tasks = [task() for _ in range(100)]
    assert Simulation(100, tasks, 10).run() / len(tasks) < 9.0, "seconds a task"
    assert Simulation(100, [(replace(need), steps) for need, steps in tasks], 1).run() / len(tasks) > 20.0
