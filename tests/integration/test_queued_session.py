"""A task's judge through the device's queue: what a second task waits for, and what too little memory leads to."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device, Verdict
from cuda_agent.core.errors import OutOfMemory, TaskError
from cuda_agent.core.records import Candidate, Task
from cuda_agent.judge import Case, Sharing
from cuda_agent.pool.client import DeviceQueue
from cuda_agent.pool.queued import WHOLE, QueuedSession
from cuda_agent.pool.rule import Need, QueueRule
from cuda_agent.pool.server import QueueServer
from fault_specimens import small_axpby
from published_workspace import axpby_candidate

pytestmark = pytest.mark.integration
OPTIONS = JudgeOptions(device=Device.CPU, timing_budget_s=0.5, trials=2, call_timeout_s=30.0)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[QueueServer]:
    with QueueServer(tmp_path / "queue.sock", QueueRule(1 << 40, shares_cores=True), log=tmp_path / "turns") as opened:
        yield opened


def session(server: QueueServer, name: str, task: Task | None = None) -> QueuedSession:
    return QueuedSession(
        task or small_axpby("1, 128"),
        OPTIONS,
        DeviceQueue(server.address, name),
        Sharing(prewarms=False),
        card_bytes=1 << 40,
    )


def case(files: dict[str, str] | None = None) -> Case:
    found = Case(small_axpby("1, 128"), OPTIONS, Candidate(files=files or dict(axpby_candidate(Device.CPU).files)))
    found.build()
    return found


def test_a_clock_of_another_task_keeps_a_judge_waiting(server: QueueServer) -> None:
    one, verdicts = session(server, "one"), list[Verdict]()
    thread = threading.Thread(target=lambda: verdicts.append(one.judge(case(), with_profile=False).verdict))
    with DeviceQueue(server.address, "other").clock("timing"):
        thread.start()
        thread.join(2)
        assert thread.is_alive() and not verdicts
    thread.join(300)
    assert verdicts == [Verdict.TIMING_VOID]
    assert one.graph().nodes and one.work() is not None
    one.close()
    one.close()


def test_a_task_that_is_refused_leaves_the_queue_free(server: QueueServer) -> None:
    bad = session(server, "bad", Task(name="bad", source="class Model: pass"))
    with pytest.raises(TaskError, match="bad"):
        bad.admit()
    bad.close()
    DeviceQueue(server.address, "other").stay(Need(1 << 39, 1 << 39)).close()
    with DeviceQueue(server.address, "other").clock("timing"):
        pass


def test_a_task_that_finds_too_little_memory_has_the_device_alone(
    server: QueueServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, whose memory this machine lacks."""
    one, promised = session(server, "one"), list[Need]()
    monkeypatch.setattr(one, "_options", OPTIONS.model_copy(update={"device": Device.CUDA}))

    def call() -> str:
        promised.append(one._need)
        if one._need is not WHOLE:
            raise OutOfMemory("Too little", "Make the task smaller")
        return "done"

    assert one._with_memory(call, lambda _: None) == "done"
    assert len(promised) == 2 and promised[1] is WHOLE
    with pytest.raises(OutOfMemory):
        one._with_memory(lambda: (_ for _ in ()).throw(OutOfMemory("Alone, too", "")), lambda _: None)
    one.close()
