"""The next candidate's worker: when its import begins, when its device starts, and who waits for that."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device, SandboxLevel
from cuda_agent.core.errors import TaskError
from cuda_agent.core.records import Candidate, Task
from cuda_agent.judge import resources as resources_module
from cuda_agent.judge.profile.quiet import Quiet
from cuda_agent.judge.session import JudgeSession
from cuda_agent.judge.sharing import NextWorker
from cuda_agent.pool.holder import Holder
from cuda_agent.workers import process as process_module
from cuda_agent.workers.channel import ChannelClosed
from cuda_agent.workers.process import Worker, WorkerSettings
from cuda_agent.workers.supply import WorkerSupply

CANDIDATE = Candidate(files={"model_new.py": "x = 1"})
TASKS = tuple(Task(name=name, source=name) for name in ("one", "other"))


class _Process:
    """What workers are made of: torch is imported at once, devices start when the test lets them, or fail."""

    def __init__(self, machine: _Machine) -> None:
        self._machine = machine
        self.pid, self.code = 0, None

    # As a channel.

    def hello(self, *, timeout_s: float) -> None: ...

    def request(self, op: str, _params: Any, *, timeout_s: float) -> None:
        assert op == "start"
        self._machine.starting.set()
        assert self._machine.may_start.wait(30)
        if self._machine.fails:
            self.code = 1
            raise ChannelClosed("start: no answer")

    def close(self) -> None: ...

    # As a process.

    def poll(self) -> int | None:
        return self.code

    def kill(self) -> None:
        self.code = -9

    doom = kill
    limit_hit = None
    peak_memory_mib = 0.0

    def tail(self, _limit: int) -> str:
        return ""


class _Machine:
    """What happened on it, in order, and all its processes."""

    def __init__(self) -> None:
        self.happened: list[str] = []
        self.processes: list[_Process] = []
        self.starting, self.may_start = threading.Event(), threading.Event()
        self.fails = False
        self.may_start.set()

    def spawn(self, worker: Worker) -> tuple[_Process, _Process]:
        self.happened.append(f"{worker.directory.name} imports")
        self.processes.append(_Process(self))
        return self.processes[-1], self.processes[-1]


class _Loaded:
    """A candidate in its worker; as `CandidateProcess`."""

    happened: list[str]

    def __init__(self, worker: Worker, _reference: Any, *, timeout_s: float) -> None:
        self.worker = worker

    def load(self, _candidate: Candidate, _library: Path | None) -> None:
        self.worker.ready()
        self.happened.append(f"{self.worker.directory.name} is loaded")

    def close(self) -> None:
        self.happened.append(f"{self.worker.directory.name} ends")
        self.worker.kill()


class _Case:
    """Is judged in a worker of its session, with a timing where it comes so far. `look` is called beside it, and after
    it."""

    def __init__(self, task: Task, look: Callable[[str], None] = lambda when: None, *, timed: bool = True) -> None:
        self.task, self._look, self._timed = task, look, timed

    def judge(self, session: JudgeSession, *, with_profile: bool, quiet: Quiet) -> None:
        with session.process(CANDIDATE, None):
            if self._timed:
                with quiet():
                    self._look("timed")
                self._look("observed")

    def evaluation(self) -> str:
        return "evaluation"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Machine]:
    made = _Machine()
    monkeypatch.setattr(Worker, "_spawn", lambda worker: made.spawn(worker))
    monkeypatch.setattr(process_module, "near_gpu", lambda: None)
    monkeypatch.setattr(_Loaded, "happened", made.happened, raising=False)
    monkeypatch.setattr(resources_module, "CandidateProcess", _Loaded)
    yield made
    # Nobody waits on in a thread of ours.
    made.may_start.set()


def _have_cores(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(count)))


def _session(task: Task, folder: Path, device: Device = Device.CUDA) -> JudgeSession:
    """One that is open, and whose task is loaded."""
    session = JudgeSession(task, JudgeOptions(device=device))
    session._opened = True
    session.sharing.next_worker = NextWorker.BESIDE
    session.workers = WorkerSupply(WorkerSettings(device, SandboxLevel.REDUCED, 1024), folder / task.name)
    session._stack.callback(session.workers.close)
    session._reference_worker = cast("Any", SimpleNamespace(alive=True))
    session._reference = cast("Any", SimpleNamespace(release=lambda: None))
    session.workers.prewarm()
    return session


@pytest.fixture
def holder(machine: _Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Holder]:
    """Knows both tasks."""
    _have_cores(monkeypatch, 16)
    made = Holder(JudgeOptions(device=Device.CUDA), None, None, 2)
    made._sessions.update((task.key, _session(task, tmp_path)) for task in TASKS)
    yield made
    machine.may_start.set()
    made.close()
    assert all(process.code is not None for process in machine.processes), "left behind"


def _spare(holder: Holder, task: Task = TASKS[0]) -> Worker:
    (worker,) = holder._sessions[task.key].next_candidate()
    return worker


def _judge(holder: Holder, case: _Case) -> None:
    assert holder.judge(cast("Any", case), True) == "evaluation"


def _until(reached: Callable[[], bool]) -> None:
    limit = time.monotonic() + 30
    while not reached() and time.monotonic() < limit:
        time.sleep(0.001)
    assert reached()


def _entering(holder: Holder) -> tuple[threading.Thread, threading.Event]:
    """Somebody who is about to time something, and whether he does."""
    entered = threading.Event()

    def enter() -> None:
        with holder._quiet():
            entered.set()

    thread = threading.Thread(target=enter)
    thread.start()
    return thread, entered


@pytest.mark.parametrize(
    ("device", "cores", "when", "order"),
    [
        (Device.CUDA, 16, NextWorker.BESIDE, ["2 imports", "1 is loaded", "verified", "1 ends"]),
        (Device.CUDA, 8, NextWorker.BESIDE, ["2 imports", "1 is loaded", "verified", "1 ends"]),
        (Device.CUDA, 7, NextWorker.BESIDE, ["1 is loaded", "verified", "1 ends", "2 imports"]),
        (Device.CPU, 16, NextWorker.BESIDE, ["1 is loaded", "verified", "1 ends", "2 imports"]),
        (Device.CUDA, 16, NextWorker.AFTER, ["1 is loaded", "verified", "1 ends", "2 imports"]),
        (Device.CUDA, 16, NextWorker.ASKED, ["1 is loaded", "verified", "1 ends"]),
    ],
)
def test_the_next_worker_imports_beside_a_candidate_where_cores_abound(
    machine: _Machine,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    device: Device,
    cores: int,
    when: NextWorker,
    order: list[str],
) -> None:
    _have_cores(monkeypatch, cores)
    session = _session(TASKS[0], tmp_path, device)
    session.sharing.next_worker = when
    with session.process(CANDIDATE, None) as process:
        machine.happened.append("verified")
        assert process.worker not in session.next_candidate()
    assert [what.removeprefix("candidate-") for what in machine.happened] == ["1 imports", *order]
    assert len(session.next_candidate()) == (when is not NextWorker.ASKED)
    session.close()
    assert all(process.code is not None for process in machine.processes), "left behind"


def test_a_next_worker_that_died_beside_a_candidate_is_replaced(
    machine: _Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _have_cores(monkeypatch, 16)
    session = _session(TASKS[0], tmp_path)
    with session.process(CANDIDATE, None):
        machine.processes[-1].code = -9
    (spare,) = session.next_candidate()
    assert spare.alive and spare.directory.name == "candidate-3"
    session.close()


def test_a_screening_may_take_the_next_candidates_worker(
    machine: _Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _have_cores(monkeypatch, 16)
    session = _session(TASKS[0], tmp_path)
    (spare,) = session.next_candidate()
    spare.begin()
    assert session.workers.screener() is spare and not session.next_candidate()
    session.settle()
    session.workers.prewarm()
    (other,) = session.next_candidate()
    assert other is not spare
    session.close()
    assert not spare.alive and not other.alive


def test_the_next_device_starts_after_the_timing_beside_what_is_left(machine: _Machine, holder: Holder) -> None:
    seen = []

    def look(when: str) -> None:
        if when == "observed":
            _until(lambda: _spare(holder).awake)
        seen.append((when, _spare(holder).awake))

    _judge(holder, _Case(TASKS[0], look))
    assert seen == [("timed", False), ("observed", True)]
    assert not _spare(holder, TASKS[1]).awake, "nobody asked for it"


@pytest.mark.parametrize("cores", [2, 16])
def test_the_next_device_starts_after_any_verdict(holder: Holder, monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    _have_cores(monkeypatch, cores)
    _judge(holder, _Case(TASKS[0], timed=False))
    first = _spare(holder)
    _until(lambda: first.awake)
    _judge(holder, _Case(TASKS[0]))
    assert _spare(holder) is not first and not first.alive
    _until(lambda: _spare(holder).awake)


@pytest.mark.parametrize("task", TASKS)
def test_a_timing_waits_for_the_device_of_any_next_worker(machine: _Machine, holder: Holder, task: Task) -> None:
    machine.may_start.clear()
    _spare(holder, task).begin()
    assert machine.starting.wait(30)
    thread, entered = _entering(holder)
    assert not entered.wait(0.1)
    machine.may_start.set()
    thread.join(30)
    assert entered.is_set() and _spare(holder, task).awake


def test_a_timing_does_not_wake_who_has_not_begun(machine: _Machine, holder: Holder) -> None:
    machine.may_start.clear()
    with holder._quiet():
        assert not machine.starting.is_set()
    assert not any(_spare(holder, task).awake for task in TASKS)


def test_a_device_that_does_not_start_holds_up_no_timing(machine: _Machine, holder: Holder) -> None:
    machine.fails = True
    spare = _spare(holder)
    spare.begin()
    with holder._quiet():
        assert not spare.awake and not spare.alive
    # Whoever takes it finds it dead.
    machine.fails = False
    _judge(holder, _Case(TASKS[0]))
    assert _spare(holder) is not spare


def test_what_ends_a_session_ends_a_worker_whose_device_starts(machine: _Machine, holder: Holder) -> None:
    machine.may_start.clear()
    spare = _spare(holder)
    spare.begin()
    assert machine.starting.wait(30)

    class _Broken(_Case):
        def judge(self, session: JudgeSession, *, with_profile: bool, quiet: Quiet) -> None:
            raise TaskError("one fails", "Mend it")

    with pytest.raises(TaskError):
        holder.judge(cast("Any", _Broken(TASKS[0])), True)
    assert not spare.alive and list(holder._sessions) == [TASKS[1].key]
    with holder._quiet():
        assert not spare.awake
