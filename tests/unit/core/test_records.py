"""Impossible records can't be built; what can be built survives the disk."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import builders
from cuda_agent.core.enums import Phase, Verdict
from cuda_agent.core.errors import StoreError
from cuda_agent.core.graph import Graph, GraphInput, Node, Ref, TensorMeta, ValueKind
from cuda_agent.core.record import SCHEMA_VERSION
from cuda_agent.core.records import (
    Budget,
    Candidate,
    Evaluation,
    Ratio,
    Task,
    Timing,
    Trajectory,
    VerifyReport,
    Violation,
)

VIOLATION = Violation(rule="torch compute", layer="syntax", detail="F.relu")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"profile": None}, "PASSED needs a profile"),
        ({"violations": (VIOLATION,)}, "no violation"),
        ({"verdict": Verdict.INCORRECT, "verify": builders.verify(True, False)}, "only when verification passed"),
        ({"verdict": Verdict.CRASHED, "verify": None}, "only when verification passed"),
        ({"build": None}, "needs a successful build"),
        ({"build": builders.build(succeeded=False, library_digest=None)}, "needs a successful build"),
        ({"reward": 3}, "Extra inputs"),
    ],
)
def test_impossible_evaluation_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        builders.evaluation(**changes)


def test_failed_evaluation_is_possible_without_reports() -> None:
    failed = builders.evaluation(
        verdict=Verdict.BUILD_FAILED,
        phase=Phase.BUILD,
        profile=None,
        verify=None,
        build=builders.build(succeeded=False, library_digest=None),
    )
    assert failed.profile is None


@pytest.mark.parametrize("changes", [{"library_digest": None}, {"succeeded": False}])
def test_library_exists_exactly_when_the_build_succeeded(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="exactly when"):
        builders.build(**changes)


@pytest.mark.parametrize(("passed", "trials"), [(True, ()), (True, (False,)), (False, (True,))])
def test_verification_passes_exactly_when_all_trials_do(passed: bool, trials: tuple[bool, ...]) -> None:
    with pytest.raises(ValidationError, match="every trial"):
        VerifyReport(passed=passed, trials=builders.verify(*trials).trials if trials else ())


@pytest.mark.parametrize(
    "changes",
    [{"low_us": 101.0}, {"high_us": 99.0}, {"latency_us": 0.0}, {"latency_us": -1.0}, {"repetitions": 0}],
)
def test_impossible_timing_is_refused(changes: dict[str, float]) -> None:
    known = {"latency_us": 100.0, "low_us": 99.0, "high_us": 101.0, "event_us": 100.0, "repetitions": 5}
    with pytest.raises(ValidationError):
        Timing(**{**known, **changes})


def test_ratio_of_nothing_is_refused() -> None:
    with pytest.raises(ValidationError):
        Ratio(baseline="eager", value=0.0, low=0.0, high=0.0)


def test_matched_baseline_must_have_been_timed() -> None:
    with pytest.raises(ValidationError, match="was not timed"):
        builders.profile({"eager": 2.0}, baselines={"eager": builders.timing()}, matched="graphs_tf32")


def test_evaluation_of_a_trajectory_is_that_of_its_best_candidate() -> None:
    known: dict[str, Any] = {
        "task_key": "k",
        "task_name": "t",
        "policy": "playbook",
        "turns": (),
        "budget": Budget(turns_limit=1),
        "outcome": "finished",
        "evaluation": builders.evaluation(),
    }
    assert Trajectory(**known, best=builders.CANDIDATE).best == builders.CANDIDATE
    for other in (None, Candidate(files={"model_new.py": "other"})):
        with pytest.raises(ValidationError, match="best candidate"):
            Trajectory(**known, best=other)


def test_records_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        builders.evaluation().verdict = Verdict.CRASHED  # type: ignore[misc]


def test_evaluation_survives_the_disk(tmp_path: Path) -> None:
    before = builders.evaluation(verify=builders.verify(True, True))
    before.write(tmp_path)
    assert Evaluation.read(tmp_path) == before


def test_graph_with_every_kind_of_argument_survives_the_disk(tmp_path: Path) -> None:
    meta = TensorMeta(shape=(2, 3), dtype="float32", strides=(3, 1))
    node = Node(
        name="y",
        op="aten.clamp.default",
        args=(Ref(ref="x"), 1, 2.5, True, None, "none", [Ref(ref="x"), [1, None]]),
        outputs=(meta, None),
    )
    graph = Graph(
        inputs=(GraphInput(name="x", kind=ValueKind.INPUT, meta=meta, position=0),), nodes=(node,), outputs=("y",)
    )
    graph.write(tmp_path)
    assert Graph.read(tmp_path) == graph
    assert meta.numel == 6


def test_infinite_error_survives_the_disk() -> None:
    trial = builders.verify(True).trials[0].model_copy(update={"max_rel_error": math.inf})
    before = builders.evaluation(verify=VerifyReport(passed=True, trials=(trial,)))
    after = Evaluation.from_json(before.to_json())
    assert after.verify is not None and after.verify.trials[0].max_rel_error == math.inf


def test_other_schema_version_is_refused_by_naming_both() -> None:
    text = builders.evaluation().to_json().replace(f'"schema_version": {SCHEMA_VERSION}', '"schema_version": 99')
    with pytest.raises(StoreError, match=f"version 99.*reads {SCHEMA_VERSION}") as caught:
        Evaluation.from_json(text, where="run/evaluation.json")
    assert "run/evaluation.json" in caught.value.cause
    assert caught.value.remedy


@pytest.mark.parametrize("text", ["", "[]", "{", '{"schema_version": 1}', '{"schema_version": 1, "surprise": 2}'])
def test_what_is_no_record_is_a_store_error(text: str) -> None:
    with pytest.raises(StoreError):
        Evaluation.from_json(text)


def test_missing_file_is_a_store_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="Can't read"):
        Evaluation.read(tmp_path)


def test_task_key_depends_on_source_and_tolerances_only() -> None:
    task = Task(name="a", source="x = 1\n")
    assert task.key == Task(name="b", source="x = 1\n", origin="dataset").key
    assert task.key != Task(name="a", source="x = 2\n").key
    assert task.key != Task(name="a", source="x = 1\n", atol=1e-3).key
