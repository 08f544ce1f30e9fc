"""Which tasks follow each other in one process, with processes that only count."""

from __future__ import annotations

from typing import Any, cast

import pytest

from cuda_agent.tasks.filter.processes import Processes, ProcessSlot
from cuda_agent.tasks.filter.records import Failure
from cuda_agent.tasks.records import Rule, TaskFinding


class Numbered:
    """A worker with a number."""

    def __init__(self, number: int) -> None:
        self.number, self.ended = number, False

    def ready(self) -> None:
        """It is."""

    def kill(self) -> None:
        self.ended = True


class Workers:
    def __init__(self) -> None:
        self.started: list[Numbered] = []

    def start(self) -> Numbered:
        assert all(worker.ended for worker in self.started)
        self.started.append(Numbered(len(self.started)))
        return self.started[-1]


def asked(most: int, tasks: str) -> list[tuple[str, int, bool]]:
    """(task, process, another may follow) of every time that a task is asked. `x`: breaks a rule, wherever; `o`: only
    where somebody was before; else it keeps all."""
    workers, seen = Workers(), list[tuple[str, int, bool]]()
    processes = Processes(cast(Any, workers.start), most)

    def ask(task: str) -> None:
        def job(seat: ProcessSlot) -> None:
            number = cast(Numbered, seat.worker).number
            used = any(number == other for _, other, _ in seen)
            assert seat.alone is not used
            seen.append((task, number, seat.reusable))
            if task == "x" or (task == "o" and used):
                raise Failure(TaskFinding(rule=Rule.RUNS, detail="no"))

        processes.ask(job)

    for task in tasks:
        if task == "x":
            with pytest.raises(Failure):
                ask(task)
        else:
            ask(task)
    return seen


def test_one_each() -> None:
    assert asked(1, "aab") == [("a", 0, False), ("a", 1, False), ("b", 2, False)]


def test_several_in_a_row() -> None:
    assert asked(3, "abcd") == [("a", 0, True), ("b", 0, True), ("c", 0, False), ("d", 1, True)]


def test_only_a_process_of_its_own_convicts() -> None:
    assert asked(9, "axb") == [("a", 0, True), ("x", 0, True), ("x", 1, True), ("b", 2, True)]
    assert asked(9, "aob") == [("a", 0, True), ("o", 0, True), ("o", 1, True), ("b", 1, True)]


def test_a_process_that_ended_serves_nobody() -> None:
    workers = Workers()
    processes = Processes(cast(Any, workers.start), 9)
    processes.ask(lambda seat: seat.worker.kill())
    processes.ask(lambda seat: None)
    assert len(workers.started) == 2


@pytest.mark.parametrize("repeats", [True, False])
def test_a_shortage_beside_others_may_be_left_for_later(repeats: bool) -> None:
    workers = Workers()
    processes = Processes(cast(Any, workers.start), 9, repeats_scarce=repeats)

    def short(_seat: ProcessSlot) -> None:
        raise Failure(TaskFinding(rule=Rule.COMPILES, detail="no time"), scarce=True)

    processes.ask(lambda _seat: None)
    with pytest.raises(Failure):
        processes.ask(short)
    assert len(workers.started) == (2 if repeats else 1)
