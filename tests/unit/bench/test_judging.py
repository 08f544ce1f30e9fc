"""A task's steps on the device, in their turns."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cuda_agent.bench import judging
from cuda_agent.bench.judging import LaneSession
from cuda_agent.bench.lane import Lane, Size, Step
from cuda_agent.bench.lane_server import LaneServer
from cuda_agent.bench.scarcity import Memory, Shortage, screened_none
from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device, Verdict
from cuda_agent.core.errors import CudaAgentError, DeviceError, TaskError, WorkerError
from cuda_agent.core.graph import TensorMeta
from cuda_agent.core.records import Candidate, ScreenReport
from cuda_agent.judge.profile.quiet import Quiet
from cuda_agent.judge.session import JudgeSession
from cuda_agent.judge.sharing import Sharing
from cuda_agent.judge.verify.reference import TaskSpec
from cuda_agent.workers.helper import HelperProcess

NO_MEMORY = DeviceError("No memory for reference-inputs: cudaMalloc of 7168 MiB", "Make the task smaller")
TOO_LARGE = TaskError("a_task: the reference runs out of memory (expected)", "Shrink the task")
CANDIDATE = Candidate(files={"model_new.py": "x = 1"})
STOCHASTIC = TaskError("a_task is stochastic", "Remove random operators")


#: of a screening: what the candidate's worker says of its only setting.
IN_ITS_WORKER = WorkerError("OutOfMemoryError: CUDA out of memory", "")
TIMES = ScreenReport(configs=({},), latency_us=(1.0,))
NO_TIMES = ScreenReport(configs=({},), latency_us=(None,), failures={0: "it raises"})


META = TensorMeta(shape=(2, 3), strides=(3, 1), dtype="float32")
SPEC = TaskSpec(
    init={}, inputs_spec={}, inputs=(META,), state={}, outputs_spec={}, outputs=(META, META), mutated=(),
    products=False, policy_differs=False, variants=(), peak_bytes=100,
)  # fmt: skip


class _Judge:
    """Admits its task after these failures."""

    spec: Any = None
    kept_bytes: int | None = None
    task: Any = None
    options = JudgeOptions(device=Device.CPU)
    sharing = Sharing()

    def renew(self) -> None: ...

    @property
    def baselines(self) -> Any:
        return self

    def progress(self, *_said: str) -> None:
        pass

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

    def prewarm(self) -> None:
        pass

    settle = prewarm

    def next_candidate(self) -> tuple[()]:
        return ()

    next_screener = next_candidate

    def screen(self, _candidate: Any, _configs: Any, *, quiet: Quiet) -> ScreenReport:
        with quiet() as hush, hush():
            if self._failures and self._failures[0] is IN_ITS_WORKER:
                return NO_TIMES.model_copy(update={"failures": {0: str(self._failures.pop(0))}})
            self.admit()
        return TIMES


class _Case:
    """Is judged with these failures, or verdicts."""

    def __init__(self, ends: Sequence[CudaAgentError | Verdict]) -> None:
        self._ends = list(ends)

    def judge(self, _session: Any, *, with_profile: bool, quiet: Quiet) -> None:
        assert with_profile
        end = self._ends.pop(0)
        if isinstance(end, CudaAgentError):
            raise end
        self.verdict = end
        if end is Verdict.PASSED:
            with quiet() as hush, hush():
                pass

    def evaluation(self) -> Any:
        return SimpleNamespace(verdict=self.verdict, reason="CUDA out of memory")


class _Builder:
    """Hands out a case that is built."""

    def __init__(self, case: _Case | None = None) -> None:
        self._case = case

    def call(self, *_said: Any) -> Any:
        return self._case


@pytest.mark.parametrize("failure", [NO_MEMORY, TOO_LARGE])
def test_a_task_without_memory_beside_others_is_admitted_alone(tmp_path: Path, failure: CudaAgentError) -> None:
    assert _turns(tmp_path, [failure], object()) == ["shared admission", "alone room"]


@pytest.mark.parametrize(
    ("failures", "builder"), [([STOCHASTIC], object()), ([NO_MEMORY, NO_MEMORY], object()), ([NO_MEMORY], None)]
)
def test_what_cannot_be_admitted_says_so(
    tmp_path: Path, failures: list[CudaAgentError], builder: object | None
) -> None:
    with pytest.raises(type(failures[0])):
        _turns(tmp_path, failures, builder)


@pytest.mark.parametrize("end", [NO_MEMORY, TOO_LARGE, Verdict.OUT_OF_MEMORY])
def test_a_candidate_without_memory_beside_others_is_judged_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: CudaAgentError | Verdict
) -> None:
    assert _judged(tmp_path, monkeypatch, [end, Verdict.PASSED]) == ["shared verification", "alone room"]


def test_a_candidate_that_passes_is_judged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = ["shared verification", "alone profile", "shared observation"]
    assert _judged(tmp_path, monkeypatch, [Verdict.PASSED]) == turns


@pytest.mark.parametrize("ends", [[STOCHASTIC], [NO_MEMORY, NO_MEMORY]])
def test_what_cannot_be_judged_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: list[CudaAgentError]
) -> None:
    with pytest.raises(type(ends[0])):
        _judged(tmp_path, monkeypatch, ends)


@pytest.mark.parametrize(
    ("failures", "turns"),
    [
        ([], ["alone screening", "shared loading"]),
        ([NO_MEMORY], ["alone room", "alone screening", "shared loading"]),
        ([IN_ITS_WORKER], ["alone room", "alone screening", "shared loading"]),
    ],
)
def test_a_screening_without_memory_is_made_alone(
    tmp_path: Path, failures: list[CudaAgentError], turns: list[str]
) -> None:
    def screen(session: LaneSession) -> None:
        assert session.screen(CANDIDATE, [{}]) == TIMES

    found = _turns_of(tmp_path, _Judge(failures), cast("HelperProcess", _Builder()), screen)
    assert sorted(set(found)) == sorted(turns) and len(found) == len(turns)


def test_which_screening_found_no_memory() -> None:
    assert not screened_none(TIMES) and not screened_none(NO_TIMES)
    assert screened_none(NO_TIMES.model_copy(update={"failures": {0: "CUDA out of memory"}}))


def test_what_a_step_needs() -> None:
    step = Step("verification", 5, 8, 3)
    assert step.needed_bytes(Size(100, 10, 1)) == 583 and Step().needed_bytes(Size(100, 10, 1)) == 0
    assert Size.of(200) == Size(100, 100, 0), "as of one that reads as much as it writes"


def test_a_task_needs_what_its_reference_has_held(tmp_path: Path) -> None:
    judge = _Judge([])
    with LaneServer(tmp_path / "lane") as server:
        lane = Lane(server.address)
        lane.size = Size.of(1000)
        helper = cast("HelperProcess", object())
        session = LaneSession(cast("JudgeSession", judge), lane, helper, lambda _work: None, lambda _bytes: None)
        session.admit()
        assert lane.size == Size.of(1000), "nothing is known yet"
        judge.spec = SPEC
        session.admit()
    assert lane.size == Size(inputs=24, outputs=48, rest=28)


def _judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: Sequence[CudaAgentError | Verdict]) -> list[str]:
    """The turns of a verdict whose attempts end so."""
    monkeypatch.setattr(judging, "Case", lambda *_args: None)
    builder = cast("HelperProcess", _Builder(_Case(ends)))
    return _turns_of(tmp_path, _Judge([]), builder, lambda session: session.evaluate(CANDIDATE))


def _turns(tmp_path: Path, failures: Sequence[CudaAgentError], builder: object | None) -> list[str]:
    """How an admission had the device; `builder`: there is one on a GPU."""
    helper = cast("HelperProcess | None", builder)
    turns = _turns_of(tmp_path, _Judge(failures), helper, LaneSession.admit)
    return [turn for turn in turns if turn.endswith((" admission", " room"))]


def _turns_of(
    tmp_path: Path, judge: _Judge, builder: HelperProcess | None, work: Callable[[LaneSession], object]
) -> list[str]:
    """How something had the device, and for which step."""
    log = tmp_path / "turns.jsonl"
    with LaneServer(tmp_path / "lane", log=log) as server:
        session = LaneSession(
            cast("JudgeSession", judge), Lane(server.address), builder, lambda _work: None, lambda _bytes: None
        )
        work(session)
        # Comes when the others have left, and are in the log.
        with Lane(server.address).alone():
            turns = [json.loads(line) for line in log.read_text().splitlines()]
    return [f"{turn['how']} {turn['step']}" for turn in turns if turn["how"] != "host"]


@pytest.mark.parametrize("waits", [True, False])
def test_who_found_no_memory_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: bool) -> None:
    """A turn for each look; not where nobody else is at work, who could give any back."""
    free, told = [100, 629, 630] if waits else [], list[Memory]()
    monkeypatch.setattr(judging, "gpu_memory", lambda: (free.pop(0), 1000))

    def admit(session: LaneSession) -> None:
        session._lane.size, session._tells, session._waits = Size(inputs=100, outputs=50), told.append, waits
        session.admit()

    helper = cast("HelperProcess", object())
    turns = _turns_of(tmp_path, _Judge([NO_MEMORY]), helper, admit)
    assert turns.count("alone room") == (3 if waits else 1) and not free
    assert [memory.is_short for memory in told] == [waits, False]


def test_what_is_kept_stays_known_while_a_task_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first try has loaded the reference, which tells how much is needed; the agent compiles meanwhile."""
    judge, told = _Judge([NO_MEMORY]), list[Memory]()
    judge.spec, judge.kept_bytes = SPEC, 40
    looks = [(0, 1000), (int(0.9 * (4 * 24 + 6 * 48 + 2 * 28)) + 1, 1000)]
    monkeypatch.setattr(judging, "gpu_memory", lambda: looks.pop(0))

    def admit(session: LaneSession) -> None:
        session._lane.size, session._tells = Size.of(1 << 40), told.append
        session._tell_kept()
        session.admit()

    _turns_of(tmp_path, judge, cast("HelperProcess", object()), admit)
    assert not looks and told == [Memory(40), Memory(40, is_short=True), Memory(40)]


def test_a_shortage_lasts_while_more_comes_to_be_free() -> None:
    gib = 1 << 30
    shortage, there = Shortage(40 * gib), 100 * gib
    assert shortage.waits(0, there, 100) and shortage.waits(10 * gib, there, 159), "however little there is at first"
    assert shortage.waits(9 * gib, there, 170) and shortage.waits(11 * gib, there, 218)
    assert not shortage.waits(11 * gib, there, 278), "nothing more for long"
    assert Shortage(40 * gib).waits(35 * gib, there, 0) and not Shortage(40 * gib).waits(36 * gib, there, 0)
    assert not Shortage(40 * gib).waits(29 * gib, 34 * gib, 0), "hardly anybody else holds any"


@pytest.fixture(autouse=True)
def _counts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "work_needed", lambda _session: None)
    monkeypatch.setattr(judging, "gpu_memory", lambda: (1, 1))
    monkeypatch.setattr(judging, "_LOOK_S", 0.0)
