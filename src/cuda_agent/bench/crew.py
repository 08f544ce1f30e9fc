"""The players of a benchmark, driven by threads: tasks go in, results come out as they are known."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from cuda_agent.bench.lane import Address
from cuda_agent.bench.options import open_bytes, open_capacity, shared_room, waiting_bytes
from cuda_agent.bench.player import Job, Player
from cuda_agent.bench.scarcity import Memory
from cuda_agent.bench.suite import Problem
from cuda_agent.core.bench import BenchResult
from cuda_agent.core.enums import Device
from cuda_agent.core.errors import CudaAgentError, DeviceError, PolicyError, WorkerError
from cuda_agent.core.inspection import Roofline
from cuda_agent.workers.helper import HelperProcess

#: policies that failed one after the other: the endpoint is gone, or the key is wrong.
_MOST_POLICY_ERRORS = 3
_LOOK_S = 0.2


class Crew:
    """So many players. `job` says how a task is to be played. `close` interrupts what is at work; its runs are whole on
    disk then. `end`: monotonic seconds at which that is due; no task is begun that wouldn't be over by then, if it
    takes as long as the others did. `set_room` is told the bytes of the device that open tasks leave to those who share
    it; None where that doesn't count. `kept`: cores for what is timed."""

    def __init__(
        self,
        device: Device,
        jobs: int,
        lane: Address,
        job: Callable[[Problem, bool], Job],
        *,
        kept: frozenset[int] = frozenset(),
        end: float | None = None,
        set_room: Callable[[int | None], None] = lambda room: None,
    ) -> None:
        self._device, self._job, self._end, self._set_room = device, job, end, set_room
        #: seconds that tasks took, of those that are played now.
        self._walls: list[float] = []
        make = partial(Player, lane, device, len(os.sched_getaffinity(0)) // jobs, kept)
        self._players = [HelperProcess(make, name=f"player {number + 1}") for number in range(jobs)]
        self._capacity = open_capacity(device)
        #: bytes of the device, by the ids of the tasks that are open.
        self._in_use: dict[str, int] = {}
        #: those of them that wait for memory.
        self._short: set[str] = set()
        self._room = threading.Condition()
        self._waiting: deque[Problem] = deque()
        self._found: queue.SimpleQueue[BenchResult | BaseException | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._stopping = False
        self._policy_errors = 0

    def limits(self) -> Roofline | None:
        """What the device reaches. Raises WorkerError, DeviceError."""
        limits: Roofline | None = self._players[0].call("limits")
        return limits

    def play(self, problems: Sequence[Problem], *, alone: bool) -> Iterator[BenchResult]:
        """Results as they come; `alone`: one task at a time. Raises KeyboardInterrupt where the end comes before all
        are done, and what no task would survive: StoreError, SandboxError, UsageError, PolicyError."""
        with self._room:
            self._waiting.extend(problems)
            self._walls.clear()
        players = self._players[: 1 if alone else len(problems)] if problems else []
        for player in players:
            thread = threading.Thread(target=self._drive, args=(player, alone), name="player", daemon=True)
            self._threads.append(thread)
            thread.start()
        at_work = len(players)
        while at_work:
            try:
                found = self._found.get(timeout=_LOOK_S)
            except queue.Empty:
                if self._end is not None and time.monotonic() > self._end:
                    raise KeyboardInterrupt from None
                continue
            if found is None:
                at_work -= 1
            elif isinstance(found, BaseException):
                raise found
            else:
                yield found
        if self._waiting:
            raise KeyboardInterrupt

    def close(self) -> None:
        with self._room:
            self._stopping = True
            self._waiting.clear()
            self._room.notify_all()
        for player in self._players:
            player.terminate()
        for player in self._players:
            player.close()
        for thread in self._threads:
            thread.join()

    # ------------------------------------------------------------ in a thread for each player

    def _drive(self, player: HelperProcess, alone: bool) -> None:
        try:
            while (problem := self._take()) is not None:
                try:
                    found = self._played(player, problem, alone)
                finally:
                    self._give_back(problem)
                if found is not None:
                    self._found.put(found)
        except BaseException as error:  # noqa: BLE001 - the boundary of a thread: whoever waits must hear of it
            self._found.put(error)
        finally:
            self._found.put(None)

    def _take(self) -> Problem | None:
        """The next task, when there is memory for it, and time, and nobody waits for memory. A large one isn't
        overtaken by small ones."""
        with self._room:
            while self._waiting and has_time(self._walls, self._end, time.monotonic()):
                need = open_bytes(self._waiting[0], self._device)
                has_room = not self._short and sum(self._in_use.values()) + need <= self._capacity
                if not self._in_use or has_room:
                    self._in_use[self._waiting[0].entry.id] = need
                    self._tell_room()
                    return self._waiting.popleft()
                self._room.wait()
        return None

    def _hears(self, problem: Problem, memory: Memory) -> None:
        """What a task that is open says of the device's memory."""
        name = problem.entry.id
        with self._room:
            if name not in self._in_use:
                return
            (self._short.add if memory.is_short else self._short.discard)(name)
            need = None if memory.kept is None else waiting_bytes(memory.kept, self._device)
            if need is not None:
                self._in_use[name] = need
                self._tell_room()
            self._room.notify_all()

    def _give_back(self, problem: Problem) -> None:
        with self._room:
            del self._in_use[problem.entry.id]
            self._short.discard(problem.entry.id)
            self._tell_room()
            self._room.notify_all()

    def _tell_room(self) -> None:
        self._set_room(shared_room(self._in_use.values(), self._device))

    def _played(self, player: HelperProcess, problem: Problem, alone: bool) -> BenchResult | None:
        """A task's result, also where a process of its judge, or its player, died; None where it was interrupted."""
        job = self._job(problem, alone)
        begin = time.monotonic()
        try:
            result: BenchResult | None = player.call("play", job, told=partial(self._hears, problem))
        except (DeviceError, WorkerError) as error:
            return None if self._stopping else _failed(job, error, time.monotonic() - begin)
        except CudaAgentError:
            if self._stopping:
                return None
            raise
        if result is not None:
            self._walls.append(time.monotonic() - begin)
            self._look_at_policy(result)
        return result

    def _look_at_policy(self, result: BenchResult) -> None:
        """Raises PolicyError where one task after the other says that the policy can't go on."""
        with self._room:
            self._policy_errors = self._policy_errors + 1 if result.outcome == "policy_error" else 0
            if self._policy_errors >= _MOST_POLICY_ERRORS:
                said = f"The policy failed on {self._policy_errors} tasks one after the other: {result.message}"
                raise PolicyError(said, "Mend what it says, then go on with --resume")


def has_time(walls: Sequence[float], end: float | None, now: float) -> bool:
    """Whether a task that is begun now is over by the end, if it takes as long as three of four others did."""
    usual = sorted(walls)[3 * (len(walls) - 1) // 4] if walls else 0.0
    return end is None or now + usual < end


def _failed(job: Job, error: CudaAgentError, wall_s: float) -> BenchResult:
    directory = str(job.directory.relative_to(job.root)) if job.directory.exists() else None
    return BenchResult(
        task=job.entry, outcome="error", message=str(error), wall_s=wall_s, directory=directory, alone=job.alone
    )
