"""The judge's view of the baselines' workers: what is tried again, and which contexts they get."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, cast

import pytest

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device, Verdict
from cuda_agent.core.errors import TaskError, WorkerError
from cuda_agent.core.records import Task
from cuda_agent.judge.profile.baselines import Baselines
from cuda_agent.judge.sharing import Sharing
from cuda_agent.workers.process import Fault, Worker, WorkerFault

NO_MEMORY = "Model.forward ran out of memory (line 7)"
WRONG = "Model.forward fails (line 7)"


class _Worker:
    """Fails its requests for these forms, so many times each."""

    numbers = iter(range(1, 1000))

    def __init__(self, failures: dict[str, list[str]], kind: str) -> None:
        # What a deadline or the host's memory ends is gone.
        self.pid, self.alive, self.small = next(self.numbers), True, False
        self._failures, self._kind = failures, kind
        self.asked: list[str] = []

    def imported(self, _op: str = "", _params: Any = None) -> None: ...

    def import_task(self, _task: Task) -> None: ...

    def ready(self) -> None: ...

    begin = ready

    def shrink(self) -> None:
        self.small = True

    def kill(self) -> None:
        self.alive = False

    def request(self, op: str, params: dict[str, Any], *, timeout_s: float) -> dict[str, Any]:
        del timeout_s
        self.asked.append(params.get("form", op))
        if op == "load" and self._failures.get("start"):
            self.alive = False
            raise WorkerError(self._failures["start"].pop(0), "Run again")
        if op == "load":
            names = ["compile", "graphs"] if params["compiled"] else ["eager"]
            return {"forms": [{"name": name, "matched": True} for name in names]}
        left = self._failures.get(params.get("form", ""), [])
        if left:
            self.alive = self._kind != "died"
            raise WorkerFault(Fault(Verdict.RAISED, left.pop(0), self._kind))
        return {"held_bytes": 1} if op == "settle" else {}


class _Made:
    def __init__(
        self,
        tmp_path: Path,
        failures: dict[str, list[str]],
        kind: str = "oom",
        one_stream: Callable[[], bool] = lambda: False,
    ) -> None:
        self.workers: list[_Worker] = []
        self.uses = 0

        def start(*, writable: tuple[Path, ...]) -> Worker:
            del writable
            self.workers.append(_Worker(failures, kind))
            return cast("Worker", self.workers[-1])

        def use(_pids: Any) -> AbstractContextManager[None]:
            self.uses += 1
            return nullcontext()

        options = JudgeOptions(device=Device.CPU)
        sharing = Sharing(device_use=use, is_scarcity=lambda reason: "out of memory" in reason)
        sharing.spares_contexts = True
        self.baselines = Baselines(
            Task(name="a", source="x = 1"), options, start, tmp_path, sharing=sharing, is_one_stream=one_stream
        )


def test_a_form_that_found_no_memory_is_prepared_again(tmp_path: Path) -> None:
    made = _Made(tmp_path, {"graphs": [NO_MEMORY]})
    made.baselines.wait()
    assert made.baselines.failed == {} and set(made.baselines.forms) == {"eager", "compile", "graphs"}
    assert made.uses == 2 and len(made.workers) == 2, "the device is asked for again, of the same workers"
    assert made.workers[1].asked == ["load", "compile", "graphs", "settle", "graphs", "settle"]


def test_eager_that_found_no_memory_is_prepared_again(tmp_path: Path) -> None:
    made = _Made(tmp_path, {"eager": [NO_MEMORY]}, kind="task")
    made.baselines.wait()
    assert set(made.baselines.forms) == {"eager", "compile", "graphs"} and made.uses == 2


@pytest.mark.parametrize(("failing", "kind"), [("start", "oom"), ("eager", "died")])
def test_workers_that_end_for_want_of_memory_are_replaced_once(tmp_path: Path, failing: str, kind: str) -> None:
    made = _Made(tmp_path, {failing: [NO_MEMORY]}, kind=kind)
    made.baselines.wait()
    assert set(made.baselines.forms) == {"eager", "compile", "graphs"} and len(made.workers) == 4
    made = _Made(tmp_path, {failing: [NO_MEMORY] * 2}, kind=kind)
    with pytest.raises((TaskError, WorkerError), match="memory"):
        made.baselines.wait()


@pytest.mark.parametrize(("reason", "is_renewed"), [(NO_MEMORY, True), (WRONG, False)])
def test_what_found_no_memory_can_be_renewed(tmp_path: Path, reason: str, is_renewed: bool) -> None:
    made = _Made(tmp_path, {"eager": [reason] * 2}, kind="task")
    with pytest.raises(TaskError, match="forward"):
        made.baselines.wait()
    made.baselines.renew()
    with nullcontext() if is_renewed else pytest.raises(TaskError, match="forward"):
        made.baselines.wait()
    assert len(made.workers) == (4 if is_renewed else 2)


@pytest.mark.parametrize("reasons", [[NO_MEMORY, NO_MEMORY], [WRONG]])
def test_what_fails_for_good(tmp_path: Path, reasons: list[str]) -> None:
    made = _Made(tmp_path, {"graphs": list(reasons)})
    made.baselines.wait()
    assert set(made.baselines.failed) == {"graphs"} and made.uses == len(reasons)
    made = _Made(tmp_path, {"eager": list(reasons)}, kind="task")
    with pytest.raises(TaskError, match="forward"):
        made.baselines.wait()
    assert made.uses == len(reasons)


def test_a_form_that_takes_its_worker_down_is_left_out(tmp_path: Path) -> None:
    made = _Made(tmp_path, {"graphs": [NO_MEMORY] * 9}, kind="died")
    made.baselines.wait()
    assert set(made.baselines.failed) == {"graphs"} and len(made.workers) == 4 and made.uses == 2


def test_a_frozen_form_that_failed_is_not_prepared_again(tmp_path: Path) -> None:
    made = _Made(tmp_path, {})
    made.baselines.wait()
    made.baselines.fail("frozen_tf32", NO_MEMORY)
    made.workers[0].kill()
    made.baselines.wait()
    assert set(made.baselines.failed) == {"frozen_tf32"} and made.uses == 2


def test_the_first_reason_stays(tmp_path: Path) -> None:
    made = _Made(tmp_path, {"graphs": [NO_MEMORY, "a graph is being recorded"]})
    made.baselines.wait()
    assert made.baselines.failed["graphs"] == f"{NO_MEMORY}; again: a graph is being recorded"


@pytest.mark.parametrize("one_stream", [True, False])
def test_programs_of_one_stream_get_small_contexts(tmp_path: Path, one_stream: bool) -> None:
    made = _Made(tmp_path, {}, one_stream=lambda: one_stream)
    made.baselines.wait()
    assert [worker.small for worker in made.workers] == [one_stream] * 2
