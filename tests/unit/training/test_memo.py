from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import builders
import pocket_domain as domain
from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Phase, Verdict
from cuda_agent.core.errors import StoreError, WorkerError
from cuda_agent.core.records import Candidate, Evaluation
from cuda_agent.pool.pool import Pool
from cuda_agent.training.environment.judges import Judges
from cuda_agent.training.environment.memo import Memo, sources_digest, stack_digest
from cuda_agent.training.pocket.table import table

CANDIDATE = Candidate(files={"model_new.py": "a", "kernels/a.cpp": "b"})


def test_a_verdict_is_asked_for_once_and_outlives_the_process(tmp_path: Path) -> None:
    memo, calls = Memo(tmp_path, "here"), []

    def judge() -> Evaluation:
        calls.append(1)
        return domain.evaluation(CANDIDATE, 50.0)

    first, known = memo.evaluation("evaluate", domain.TASK.key, CANDIDATE, judge)
    second, known_then = memo.evaluation("evaluate", domain.TASK.key, CANDIDATE, judge)
    assert (known, known_then, len(calls), memo.hit_rate) == (False, True, 1, 0.5)
    assert first.profile is not None and second.profile == first.profile
    # Half a line is what a kill leaves; another stack's verdicts are none of ours.
    with (tmp_path / "evaluations.jsonl").open("a") as stream:
        stream.write('{"kind": "eval')
    assert len(Memo(tmp_path, "here")) == 1
    assert len(Memo(tmp_path, "elsewhere")) == 0


def test_who_asks_meanwhile_waits_for_the_same_answer(tmp_path: Path) -> None:
    memo, calls, go = Memo(tmp_path, "here"), [], threading.Event()

    def judge() -> Evaluation:
        calls.append(1)
        go.wait(5)
        return domain.evaluation(CANDIDATE, 50.0)

    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(memo.evaluation, "evaluate", domain.TASK.key, CANDIDATE, judge) for _ in range(4)]
        go.set()
        assert sorted(one.result()[1] for one in asked) == [False, True, True, True]
    assert len(calls) == 1


def test_failures_of_the_judge_and_void_timings_are_not_kept(tmp_path: Path) -> None:
    memo = Memo(tmp_path, "here")

    def fails() -> Evaluation:
        raise WorkerError("gone")

    with pytest.raises(WorkerError):
        memo.evaluation("evaluate", domain.TASK.key, CANDIDATE, fails)
    passed = domain.evaluation(CANDIDATE, 50.0)
    void = passed.model_copy(update={"verdict": Verdict.TIMING_VOID, "phase": Phase.PROFILE, "profile": None})
    memo.evaluation("evaluate", domain.TASK.key, CANDIDATE, lambda: void)
    assert len(memo) == 0
    memo.evaluation("verify", domain.TASK.key, CANDIDATE, lambda: void)
    assert len(memo) == 1


def test_builds_are_known_by_what_is_compiled(tmp_path: Path) -> None:
    memo, calls = Memo(tmp_path, "here"), []
    other = Candidate(files={**CANDIDATE.files, "model_new.py": "changed"})

    def compiled() -> object:
        calls.append(1)
        return builders.build(candidate_digest=CANDIDATE.digest)

    assert sources_digest(other) == sources_digest(CANDIDATE)
    memo.build(CANDIDATE, compiled)  # type: ignore[arg-type]
    assert memo.build(other, compiled).candidate_digest == other.digest  # type: ignore[arg-type]
    assert len(calls) == 1


def test_sources_that_did_not_compile_are_refused_without_a_pool(tmp_path: Path) -> None:
    def no_pool(_options: JudgeOptions) -> Pool:
        raise AssertionError("a pool was opened")

    refused = builders.build(
        candidate_digest=CANDIDATE.digest, succeeded=False, library_digest=None, log="a.cpp:1: error: no"
    )
    first = domain.evaluation(CANDIDATE, None).model_copy(
        update={"verdict": Verdict.BUILD_FAILED, "phase": Phase.BUILD, "build": refused, "verify": None}
    )
    model = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    pass\n"
    other = Candidate(files={**CANDIDATE.files, "model_new.py": model})
    with Judges(tmp_path, domain.OPTIONS, make_pool=no_pool) as judges:
        judges.memo.evaluation("evaluate", domain.TASK.key, CANDIDATE, lambda: first)
        found = judges.session(domain.TASK).evaluate(other, stop="decided")
    assert (found.verdict, found.phase, found.reason) == (Verdict.BUILD_FAILED, Phase.BUILD, "a.cpp:1: error: no")
    assert found.candidate_digest == other.digest and found.build is not None
    assert found.build.candidate_digest == other.digest


def test_a_full_disk_is_told_to_all_who_wait(tmp_path: Path) -> None:
    folder = tmp_path / "memo"
    memo, go = Memo(folder, "here"), threading.Event()
    folder.write_text("no folder")

    def judge() -> Evaluation:
        go.wait(5)
        return domain.evaluation(CANDIDATE, 50.0)

    with ThreadPoolExecutor(3) as threads:
        asked = [threads.submit(memo.evaluation, "evaluate", domain.TASK.key, CANDIDATE, judge) for _ in range(3)]
        go.set()
        assert all(isinstance(one.exception(timeout=10), StoreError) for one in asked)


def test_equal_machines_share_verdicts() -> None:
    gpu = {"name": "G", "uuid": "1", "compute_capability": "9.0"}
    one, other = (builders.stack(gpus=({**gpu, "uuid": uuid},)) for uuid in "12")
    assert stack_digest(one, domain.OPTIONS) == stack_digest(other, domain.OPTIONS)
    changed = domain.OPTIONS.model_copy(update={"trials": 9})
    assert stack_digest(one, changed) != stack_digest(one, domain.OPTIONS)


def test_plans_stay_as_they_were_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A playbook that has changed since would write other texts, on which there is no verdict."""
    with domain.judges(tmp_path) as judges:
        before = judges.offers(domain.TASK)

    def changed(*_: object) -> object:
        raise AssertionError("the playbook was asked again")

    monkeypatch.setattr("cuda_agent.training.environment.judges.offers", changed)
    with Judges(tmp_path, domain.OPTIONS) as again:
        assert again.offers(domain.TASK) == before
        assert all(choice.evaluation is not None for choice in table(again, domain.TASK))


def test_verdicts_of_a_stack_that_is_named_are_known_anywhere(tmp_path: Path) -> None:
    Memo(tmp_path, "there").keep("evaluate", domain.evaluation(CANDIDATE, 50.0))
    with Judges(tmp_path, domain.OPTIONS) as here, Judges(tmp_path, domain.OPTIONS, stack="there") as named:
        assert here.memo.known("evaluate", domain.TASK.key, CANDIDATE) is None
        assert named.memo.known("evaluate", domain.TASK.key, CANDIDATE) is not None
