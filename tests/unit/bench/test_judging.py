"""A task's steps on the device, in their turns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, cast

import pytest

from cuda_agent.bench import judging
from cuda_agent.bench.judging import LaneSession
from cuda_agent.bench.lane import Lane, LaneServer, Size, Step
from cuda_agent.core.errors import CudaAgentError, DeviceError, TaskError
from cuda_agent.core.graph import TensorMeta
from cuda_agent.judge.helper import HelperProcess
from cuda_agent.judge.reference import TaskSpec
from cuda_agent.judge.session import JudgeSession

NO_MEMORY = DeviceError("No memory for reference-inputs: cudaMalloc of 7168 MiB", "Make the task smaller")
TOO_LARGE = TaskError("a_task: the reference runs out of memory (expected)", "Shrink the task")
STOCHASTIC = TaskError("a_task is stochastic", "Remove random operators")


class _Judge:
    """Admits its task after these failures."""

    progress: Any = None
    spec: Any = None

    def __init__(self, failures: Sequence[CudaAgentError]) -> None:
        self._failures = list(failures)

    def start(self) -> tuple[()]:
        return ()

    def admit(self) -> None:
        if self._failures:
            raise self._failures.pop(0)

    def known_graph(self) -> None:
        pass

    def rest(self) -> None:
        pass

    def telling(self, _progress: Any) -> AbstractContextManager[None]:
        return nullcontext()


@pytest.mark.parametrize("failure", [NO_MEMORY, TOO_LARGE])
def test_a_task_without_memory_beside_others_is_admitted_alone(tmp_path: Path, failure: CudaAgentError) -> None:
    assert _turns(tmp_path, [failure], object()) == ["shared", "alone"]


@pytest.mark.parametrize(
    ("failures", "builder"), [([STOCHASTIC], object()), ([NO_MEMORY, NO_MEMORY], object()), ([NO_MEMORY], None)]
)
def test_what_cannot_be_admitted_says_so(
    tmp_path: Path, failures: list[CudaAgentError], builder: object | None
) -> None:
    with pytest.raises(type(failures[0])):
        _turns(tmp_path, failures, builder)


def test_what_a_step_needs() -> None:
    step = Step("verification", 5, 8, 3)
    assert step.needed_bytes(Size(100, 10, 1)) == 583 and Step().needed_bytes(Size(100, 10, 1)) == 0
    assert Size.of(200) == Size(100, 100, 0), "as of one that reads as much as it writes"


def test_a_task_needs_what_its_reference_has_held(tmp_path: Path) -> None:
    meta = TensorMeta(shape=(2, 3), strides=(3, 1), dtype="float32")
    spec = TaskSpec(
        init={}, inputs_spec={}, inputs=(meta,), state={}, outputs_spec={}, outputs=(meta, meta), mutated=(),
        products=False, policy_differs=False, variants=(), peak_bytes=100,
    )  # fmt: skip
    judge = _Judge([])
    with LaneServer(tmp_path / "lane") as server:
        lane = Lane(server.address)
        lane.size = Size.of(1000)
        helper = cast("HelperProcess", object())
        session = LaneSession(cast("JudgeSession", judge), lane, helper, lambda _work: None, lambda _bytes: None)
        session.admit()
        assert lane.size == Size.of(1000), "nothing is known yet"
        judge.spec = spec
        session.admit()
    assert lane.size == Size(inputs=24, outputs=48, rest=28)


def _turns(tmp_path: Path, failures: Sequence[CudaAgentError], builder: object | None) -> list[str]:
    """How an admission had the device; `builder`: there is one on a GPU."""
    log = tmp_path / "turns.jsonl"
    with LaneServer(tmp_path / "lane", log=log) as server:
        judge, helper = cast("JudgeSession", _Judge(failures)), cast("HelperProcess | None", builder)
        session = LaneSession(judge, Lane(server.address), helper, lambda _work: None, lambda _bytes: None)
        session.admit()
        # Comes when the others have left, and are in the log.
        with Lane(server.address).alone():
            turns = [json.loads(line) for line in log.read_text().splitlines()]
    return [turn["how"] for turn in turns if turn["step"] == "admission"]


@pytest.fixture(autouse=True)
def _counts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "work_needed", lambda _session: None)
