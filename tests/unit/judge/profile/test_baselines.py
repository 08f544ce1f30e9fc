"""The judge's view of the baselines' workers: what is left out, and why."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, cast

import pytest

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device, Verdict
from cuda_agent.core.errors import OutOfMemory, TaskError, WorkerError
from cuda_agent.core.records import Task
from cuda_agent.judge.profile.baselines import Baselines
from cuda_agent.judge.sharing import Sharing
from cuda_agent.workers.channel import name_of
from cuda_agent.workers.process import Fault, Worker, WorkerFault
from cuda_agent.workers.requests import FaultKind, HeldMemory, WorkerAnswer, WorkerRequest
from cuda_agent.workers.requests.baseline import PlanBaselines, PlannedBaselines, PrepareBaseline, PreparedBaseline

NO_MEMORY = "Model.forward ran out of memory (line 7)"
WRONG = "Model.forward fails (line 7)"


class _Worker:
    """Fails its requests for these forms, so many times each."""

    numbers = iter(range(1, 1000))

    def __init__(self, failures: dict[str, list[str]], kind: FaultKind) -> None:
        # What a deadline or the host's memory ends is gone.
        self.pid, self.alive = next(self.numbers), True
        self._failures, self._kind = failures, kind
        self.asked: list[str] = []

    def without_device(self, _request: object) -> None: ...

    def import_task(self, _task: Task) -> None: ...

    def ready(self) -> None: ...

    begin = ready

    def kill(self) -> None:
        self.alive = False

    def request(self, request: WorkerRequest[Any], *, timeout_s: float) -> WorkerAnswer:
        del timeout_s
        self.asked.append(request.baseline if isinstance(request, PrepareBaseline) else name_of(request))
        if isinstance(request, PlanBaselines):
            if self._failures.get("start"):
                self.alive = False
                raise WorkerError(self._failures["start"].pop(0), "Run again")
            return PlannedBaselines(
                matched=dict.fromkeys(("compile", "graphs") if request.compiled else ("eager",), True)
            )
        if not isinstance(request, PrepareBaseline):
            return HeldMemory(held_bytes=1)
        left = self._failures.get(request.baseline, [])
        if left:
            self.alive = self._kind is not FaultKind.DIED
            short = self._kind in (FaultKind.OUT_OF_MEMORY, FaultKind.DIED)
            raise WorkerFault(Fault(Verdict.OUT_OF_MEMORY if short else Verdict.RAISED, left.pop(0), self._kind))
        return PreparedBaseline()


class _Made:
    def __init__(
        self, tmp_path: Path, failures: dict[str, list[str]], kind: FaultKind = FaultKind.OUT_OF_MEMORY
    ) -> None:
        self.workers: list[_Worker] = []
        self.uses = 0

        def start(*, writable: tuple[Path, ...]) -> Worker:
            del writable
            self.workers.append(_Worker(failures, kind))
            return cast("Worker", self.workers[-1])

        def use() -> AbstractContextManager[None]:
            self.uses += 1
            return nullcontext()

        options = JudgeOptions(device=Device.CPU)
        task = Task(name="a", source="x = 1")
        self.baselines = Baselines(task, options, start, tmp_path, sharing=Sharing(device_use=use))


def test_forms_are_prepared_while_the_device_is_used(tmp_path: Path) -> None:
    made = _Made(tmp_path, {})
    made.baselines.wait()
    assert set(made.baselines.forms) == {"eager", "compile", "graphs"} and made.uses == 2, "imports, and preparing"
    assert made.workers[1].asked == ["PlanBaselines", "compile", "graphs", "SettleBaselines"]


def test_a_form_that_found_no_memory_is_left_out_and_said_so(tmp_path: Path) -> None:
    made = _Made(tmp_path, {"graphs": [NO_MEMORY]})
    made.baselines.wait()
    assert made.baselines.failed == {"graphs": NO_MEMORY} and made.baselines.out_of_memory == {"graphs"}
    made = _Made(tmp_path, {"graphs": [WRONG]}, kind=FaultKind.RAISED)
    made.baselines.wait()
    assert made.baselines.failed == {"graphs": WRONG} and made.baselines.out_of_memory == set()


@pytest.mark.parametrize(("kind", "error"), [(FaultKind.OUT_OF_MEMORY, OutOfMemory), (FaultKind.TASK, TaskError)])
def test_eager_that_fails_is_the_tasks_error(tmp_path: Path, kind: FaultKind, error: type[TaskError]) -> None:
    made = _Made(tmp_path, {"eager": [WRONG]}, kind=kind)
    with pytest.raises(TaskError, match="forward") as raised:
        made.baselines.wait()
    assert type(raised.value) is error


def test_a_form_that_takes_its_worker_down_is_left_out(tmp_path: Path) -> None:
    made = _Made(tmp_path, {"graphs": [NO_MEMORY] * 9}, kind=FaultKind.DIED)
    made.baselines.wait()
    assert set(made.baselines.failed) == {"graphs"} and len(made.workers) == 4 and made.uses == 4


def test_a_frozen_form_that_failed_is_not_prepared_again(tmp_path: Path) -> None:
    made = _Made(tmp_path, {})
    made.baselines.wait()
    made.baselines.fail("frozen_tf32", NO_MEMORY)
    made.workers[0].kill()
    made.baselines.wait()
    assert set(made.baselines.failed) == {"frozen_tf32"} and made.uses == 4
