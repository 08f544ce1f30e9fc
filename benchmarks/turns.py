"""What a task of a benchmark costs by a simulation of the turns on the device, with the rule that `bench` runs by.

    .venv/bin/python benchmarks/turns.py [--jobs 9 12 16] [--join 3] [--alone-screen 0.6] [--alone-profile 2.3] …

A task: it waits for the device's memory, its reference is captured (aside) and it is admitted (shared), its candidate
compiles while its baselines are prepared (aside), it is screened (loaded shared, timed alone; one in five twice), then
verified (shared) and profiled (alone) when its baselines are ready; its workers end (shared). Before each, its workers
make their contexts (waking), small ones but for the candidate's; they go on beside one that is alone until it is ready.
Each step takes 0.6 to 1.5 times its usual seconds.
Printed: seconds a task, and how the device was used in them.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from cuda_agent.bench.turns import JOIN_S, LOOK_AGAIN_S, How, Turns

#: usual seconds: of what takes a core only (a process that starts, a plan, a candidate that compiles), and of turns.
STEPS = {
    "start": 6.0, "import": 6.0, "plan": 1.5, "compile": 6.0, "small-context": 0.24, "context": 0.65, "capture": 0.6,
    "admit": 0.6, "baselines": 3.7, "load": 0.1, "verify": 2.0, "ready-screen": 0.15, "alone-screen": 0.45,
    "ready-profile": 0.6, "alone-profile": 1.1, "observe": 0.4, "end": 0.6,
}  # fmt: skip
#: GiB that an eager call of a task holds (tenths of the suite of 250), and times that: what each turn needs; what an
#: open task holds (and its contexts), what there is for open tasks, for them and the turns together, and for the turns
#: at least.
PEAKS = 0.05, 0.8, 1.6, 2.8, 4.4, 5.6, 6.0, 6.2, 6.6, 7.0, 7.2
NEEDS = {"capture": 3.0, "admit": 5.0, "load": 2.0, "verify": 6.5, "observe": 6.0, "baselines": 2.0}
IDLE, CONTEXTS, OPEN, USED, LEAST = 1.2, 3.0, 0.8 * 140, 1.3 * 140, 0.25 * 140
_SPREAD = 0.6, 1.5
_TWICE = 0.2
#: a process of the simulation yields seconds to sleep, a turn with the seconds of its work, or what it waits for.
Process = Iterator[Any]


@dataclass
class Simulation:
    """`jobs` tasks at work at once, until `tasks` are done."""

    jobs: int
    tasks: int
    steps: dict[str, float]
    turns: Turns
    seed: int = 0
    _now: float = 0.0
    _done: int = 0
    _queue: list[tuple[float, int, Process]] = field(default_factory=list)

    def run(self) -> float:
        """Seconds a task."""
        self._random = random.Random(self.seed)
        self._numbers = itertools.count()
        self._waiting: dict[int, tuple[How, tuple[float, float], Process]] = {}
        #: ticket of one aside -> seconds of work that are left, and when it last went on.
        self._aside: dict[int, tuple[float, Process, How]] = {}
        self._ready: dict[int, bool] = {}
        self._patient: dict[int, Process] = {}
        self._open: dict[int, float] = {}
        self._closed: list[tuple[int, float, Process]] = []
        for _ in range(self.jobs):
            self._begin()
        while self._done < self.tasks:
            self._step()
        return self._now / self._done

    def _begin(self) -> None:
        number, peak = next(self._numbers), self._random.choice(PEAKS) + self._random.random() / 4
        self._closed.append((number, peak, self._task(number, peak)))
        self._let_in()

    def _let_in(self) -> None:
        while self._closed:
            number, peak, process = self._closed[0]
            needed = IDLE * peak + CONTEXTS
            if self._open and sum(self._open.values()) + needed > OPEN:
                return
            self._open[number] = needed
            self._set_room()
            self._at(self._now, process)
            del self._closed[0]

    def _set_room(self) -> None:
        contexts = len(self._open) * CONTEXTS
        idle = (sum(self._open.values()) - contexts) / 2
        self.turns.room = int(1000 * max(LEAST, USED - contexts - idle))

    def _at(self, time: float, process: Process) -> None:
        heapq.heappush(self._queue, (time, next(self._numbers), process))

    def _step(self) -> None:
        """The next event: of the queue, or the end of one aside, whose work goes on while nobody is alone; or where
        somebody waits and none comes, another look."""
        moving = {ticket: one for ticket, one in self._aside.items() if not self.turns.stops(one[2])}
        first = min(moving, key=lambda ticket: moving[ticket][0], default=None)
        ends = self._now + moving[first][0] if first is not None else float("inf")
        time = min(ends, self._queue[0][0] if self._queue else float("inf"))
        looks = bool(self._waiting) and time > self._now + LOOK_AGAIN_S
        time = self._now + LOOK_AGAIN_S if looks else time
        for ticket, (left, process, how) in moving.items():
            self._aside[ticket] = left - (time - self._now), process, how
        self._now = time
        if looks:
            self._grant(self.turns.look(time))
        elif first is not None and ends == time:
            self._leave(first, self._aside.pop(first)[1])
        else:
            self._go_on(heapq.heappop(self._queue)[2])

    def _go_on(self, process: Process) -> None:
        wanted = next(process, None)
        if wanted is None:
            return
        what, value = wanted
        if what == "sleep":
            self._at(self._now + value, process)
        elif what == "ready":
            if self._ready.get(value):
                self._at(self._now, process)
            else:
                self._patient[value] = process
        elif what == "hush":
            self._grant(self.turns.hush(value, True, self._now))
            self._at(self._now, process)
        elif what == "leave":
            self._leave(value, process)
        else:
            ticket, (seconds, gib, owner) = next(self._numbers), value
            self._waiting[ticket] = what, seconds, process
            needed = int(gib * 1000)
            self._grant(self.turns.ask(ticket, what, needed=needed, owner=owner, rank=owner, now=self._now))

    def _grant(self, tickets: list[int]) -> None:
        for ticket in tickets:
            how, (ready, seconds), process = self._waiting.pop(ticket)
            if how.is_aside:
                self._aside[ticket] = seconds, process, how
            else:
                self._at(self._now + ready, _held(ticket, seconds, process))

    def _leave(self, ticket: int, process: Process) -> None:
        granted = self.turns.leave(ticket, self._now)
        self._at(self._now, process)
        self._grant(granted)

    def _seconds(self, *steps: str) -> float:
        return sum(self.steps[step] * self._random.uniform(*_SPREAD) for step in steps)

    def _task(self, number: int, peak: float) -> Process:
        def turn(how: How, step: str) -> tuple[How, tuple[tuple[float, float], float, int]]:
            ready = self._seconds(step.replace("alone", "ready")) if how is How.ALONE else 0.0
            return how, ((ready, self._seconds(step)), NEEDS.get(step, 0.0) * peak, number)

        self._at(self._now, self._baselines(number, turn))
        yield "sleep", self._seconds("start")
        yield turn(How.WAKING, "small-context")
        yield turn(How.ASIDE, "capture")
        yield turn(How.SHARED, "admit")
        yield "sleep", self._seconds("plan", "compile")
        yield turn(How.WAKING, "small-context")
        for _ in range(2 if self._random.random() < _TWICE else 1):
            yield turn(How.SHARED, "load")
            yield turn(How.ALONE, "alone-screen")
        yield turn(How.WAKING, "context")
        yield turn(How.SHARED, "verify")
        yield "ready", number
        yield turn(How.ALONE, "alone-profile")
        yield turn(How.SHARED, "observe")
        yield turn(How.SHARED, "end")
        self._done += 1
        del self._open[number]
        self._set_room()
        self._begin()

    def _baselines(self, number: int, turn: Callable[[How, str], Any]) -> Process:
        yield "sleep", self._seconds("import")
        yield turn(How.WAKING, "small-context")
        yield turn(How.WAKING, "small-context")
        yield turn(How.ASIDE, "baselines")
        self._ready[number] = True
        if number in self._patient:
            self._at(self._now, self._patient.pop(number))


def _held(ticket: int, seconds: float, process: Process) -> Process:
    """A turn that is ready for what takes so long, then the process."""
    yield "hush", ticket
    yield "sleep", seconds
    yield "leave", ticket
    yield from process


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, nargs="+", default=[5, 7, 9, 12, 16])
    parser.add_argument("--join", type=float, default=JOIN_S)
    parser.add_argument("--tasks", type=int, default=500)
    for step, seconds in STEPS.items():
        parser.add_argument(f"--{step}", type=float, default=seconds)
    given = vars(parser.parse_args())
    steps = {step: given[step.replace("-", "_")] for step in STEPS}
    print("at work  s a task" + "".join(f"{use:>9}" for use in Turns().seconds))
    for jobs in given["jobs"]:
        turns = Turns(join_s=given["join"], room=int(USED * 1000))
        each = Simulation(jobs, given["tasks"], steps, turns).run()
        used = "".join(f"{seconds / given['tasks']:9.2f}" for seconds in turns.seconds.values())
        print(f"{jobs:7} {each:9.2f}{used}")


if __name__ == "__main__":
    main()
