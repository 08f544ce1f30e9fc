"""Pass 1, one task: every rule but those of time, asked of a process of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cuda_agent.core.errors import CudaAgentError
from cuda_agent.core.graph import Graph
from cuda_agent.core.hashing import digest_text
from cuda_agent.judge import error_floor, random_operators
from cuda_agent.tasks.decontaminate.graphhash import graph_hash, graph_operators
from cuda_agent.tasks.filter.memory import Memory
from cuda_agent.tasks.filter.options import FilterOptions
from cuda_agent.tasks.filter.processes import Processes, Seat
from cuda_agent.tasks.filter.records import Checked, Failure, from_fault, from_finding
from cuda_agent.tasks.inside.requests import (
    CheckAnswers,
    CloseTask,
    CompareCompiled,
    CompileTask,
    F,
    GraphTask,
    OpenTask,
    PlaceTask,
    RunTask,
    TaskRequest,
)
from cuda_agent.tasks.records import DatasetTask, Finding, Rule
from cuda_agent.workers.channel import name_of
from cuda_agent.workers.inside.graph.errorfloor import largest_reduction
from cuda_agent.workers.process import WorkerFault

#: of a reduction, where no graph says it.
_USUAL_LENGTH = 4096


@dataclass(frozen=True)
class Room:
    """What a task's process gets: bytes of the device's memory, threads. `sleeps`: while it waits for the device, so
    that others have its core; what is timed doesn't."""

    device_bytes: int
    threads: int
    sleeps: bool = False


class Asked:
    """A task in a process, asked step by step until its time is over."""

    def __init__(self, seat: Seat, task: DatasetTask, options: FilterOptions, room: Room) -> None:
        self._seat, self._fork, self._task, self._options, self._room = seat, seat.fork, task, options, room
        self.seconds: dict[str, float] = {"fork": round(seat.seconds, 3)}
        self.restart()

    def restart(self) -> None:
        """From now on it has all its time again; it had to wait for others."""
        self._end = time.monotonic() + self._options.limit_s

    def open(self) -> None:
        """Raises Failure."""
        task, options = self._task.task, self._options
        request = OpenTask(
            name=task.name,
            source=task.source,
            atol=task.atol,
            rtol=task.rtol,
            seed=seed_of(task.key),
            device=options.device,
            memory_bytes=options.memory_mib * 2**20,
            device_bytes=self._room.device_bytes,
            host_bytes=options.host_memory_mib * 2**20,
            threads=self._room.threads,
            sleeps=self._room.sleeps,
        )
        self.ask(request)

    def close(self) -> None:
        """Makes place for the next task, where one may come."""
        if self._seat.goes_on:
            try:
                self.ask(CloseTask())
            except Failure:
                self._fork.end()

    @contextmanager
    def at_work(self, memory: Memory) -> Iterator[None]:
        """With room for its answers; waiting for it isn't its own time."""
        begun = time.monotonic()
        with memory.active(self._task):
            waited = time.monotonic() - begun
            self._end += waited
            self.seconds["waiting"] = self.seconds.get("waiting", 0.0) + round(waited, 3)
            yield

    @property
    def alive(self) -> bool:
        return not self._fork.ended

    def ask(self, request: TaskRequest[F]) -> F:
        """Raises Failure where the task breaks a rule, or its process ends, hangs or breaks its protocol."""
        begun, step = time.monotonic(), name_of(request)
        try:
            found = self._fork.request(request, timeout_s=max(0.1, self._end - begun))
        except WorkerFault as error:
            raise from_fault(error.fault, request.rule) from None
        finally:
            self.seconds[step] = self.seconds.get(step, 0.0) + round(time.monotonic() - begun, 3)
        if found.finding is not None:
            raise from_finding(found.finding)
        return found


def check(processes: Processes, task: DatasetTask, options: FilterOptions, room: Room, memory: Memory) -> Checked:
    """Raises Failure, WorkerError."""

    def job(seat: Seat) -> Checked:
        asked = Asked(seat, task, options, room)
        try:
            found = _checked(asked, task.task.key, options, memory)
        except Failure as failure:
            failure.seconds = asked.seconds
            raise
        asked.close()
        return found

    with memory.open(task):
        return processes.ask(job)


def _checked(asked: Asked, key: str, options: FilterOptions, memory: Memory) -> Checked:
    asked.open()
    with asked.at_work(memory):
        ran = asked.ask(RunTask())
    graph = _graph(asked)
    random = random_operators(graph) if isinstance(graph, Graph) else ()
    if random:
        raise Failure(Finding(rule=Rule.STOCHASTIC, detail=f"draws random numbers: {', '.join(random)}"))
    length = largest_reduction(graph) if isinstance(graph, Graph) else _USUAL_LENGTH
    floor = error_floor(options.precision, options.device, length, ran.products)
    with asked.at_work(memory):
        asked.ask(CheckAnswers(floor=floor))
    if isinstance(graph, Failure):
        # Said only now: that it is stochastic, too, would say more.
        raise graph
    asked.ask(CompileTask())
    with asked.at_work(memory):
        asked.ask(CompareCompiled())
        sample = asked.ask(PlaceTask()).sample
    return Checked(
        task_key=key,
        peak_memory_bytes=ran.peak_memory_bytes,
        graph_hash=graph_hash(graph),
        graph_operators=graph_operators(graph),
        sample=sample,
        seconds=asked.seconds,
    )


def seed_of(key: str) -> int:
    """A task's seed: the same in every process, on every machine."""
    return int(digest_text("filter", key)[:11], 16)


def _graph(asked: Asked) -> Graph | Failure:
    """The graph, or why there is none. Raises Failure where the process didn't survive it."""
    try:
        return Graph.from_json(asked.ask(GraphTask()).graph, where="the captured graph")
    except (CudaAgentError, RecursionError) as error:
        return Failure(Finding(rule=Rule.COMPILES, detail=f"its process sent no graph: {error}"[:300]))
    except Failure as failure:
        if failure.scarce or not asked.alive:
            raise
        return failure
