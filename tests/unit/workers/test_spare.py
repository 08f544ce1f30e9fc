"""The next candidate's worker: when its import begins, when its device starts, and who waits for that."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device, SandboxLevel
from cuda_agent.core.records import Candidate, Task
from cuda_agent.judge import resources as resources_module
from cuda_agent.judge.session import JudgeSession
from cuda_agent.workers import process as process_module
from cuda_agent.workers.channel import ChannelClosed
from cuda_agent.workers.process import Worker, WorkerSettings
from cuda_agent.workers.requests import Start
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

    def request(self, request: object, *, timeout_s: float) -> None:
        assert isinstance(request, Start)
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
    session.workers = WorkerSupply(WorkerSettings(device, SandboxLevel.REDUCED, 1024), folder / task.name)
    session._stack.callback(session.workers.close)
    session._reference_worker = cast("Any", SimpleNamespace(alive=True))
    session._reference = cast("Any", SimpleNamespace(release=lambda: None))
    session.workers.prewarm()
    return session


@pytest.mark.parametrize("prewarms", [True, False])
def test_the_next_worker_imports_after_a_candidate(
    machine: _Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, prewarms: bool
) -> None:
    _have_cores(monkeypatch, 16)
    session = _session(TASKS[0], tmp_path)
    session.sharing.prewarms = prewarms
    with session.process(CANDIDATE, None) as process:
        machine.happened.append("verified")
        assert process.worker not in session.next_candidate()
    order = ["1 imports", "1 is loaded", "verified", "1 ends", *(["2 imports"] if prewarms else [])]
    assert [what.removeprefix("candidate-") for what in machine.happened] == order
    assert len(session.next_candidate()) == prewarms
    session.close()
    assert all(process.code is not None for process in machine.processes), "left behind"


def test_a_screening_may_take_the_next_candidates_worker(
    machine: _Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _have_cores(monkeypatch, 16)
    session = _session(TASKS[0], tmp_path)
    (spare,) = session.next_candidate()
    spare.begin()
    assert session.workers.screener() is spare and not session.next_candidate()
    session.workers.settle()
    session.workers.prewarm()
    (other,) = session.next_candidate()
    assert other is not spare
    session.close()
    assert not spare.alive and not other.alive


def test_a_worker_that_does_not_start_its_device_holds_nothing_up(
    machine: _Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _have_cores(monkeypatch, 16)
    session = _session(TASKS[0], tmp_path)
    (spare,) = session.next_candidate()
    machine.fails = True
    spare.begin()
    session.workers.settle()
    assert not spare.awake and not spare.alive
    machine.fails = False
    with session.process(CANDIDATE, None) as process:
        assert process.worker is not spare
    session.close()
