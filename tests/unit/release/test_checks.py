"""What each gate says of evaluations."""

from __future__ import annotations

from typing import Any

import pytest

import builders
from cuda_agent.core.config import Regression
from cuda_agent.core.enums import Device, Phase, Signal, Verdict
from cuda_agent.core.extraction import WholeModel, WholePart
from cuda_agent.core.records import Evaluation, TrialReport, VerifyReport, Violation
from cuda_agent.release import checks
from cuda_agent.release.gate import SpeedGate, WholeModelGate
from cuda_agent.release.promote import Examination
from cuda_agent.release.records import GateResult
from cuda_agent.release.speed import ColdProcess, speed

BUDGET = "relative error 0.002 (whole output) exceeds its budget 2e-06; eager's own is 4e-08"


def trial(kind: str, reason: str = "") -> TrialReport:
    return TrialReport(
        kind=kind, passed=not reason, reason=reason, over_budget=reason == BUDGET,
        candidate_error=1e-7, eager_error=5e-8, budget=2e-6,
    )  # fmt: skip


def verified(*trials: TrialReport, **changes: Any) -> Evaluation:
    passed = all(one.passed for one in trials)
    known: dict[str, Any] = {"verify": VerifyReport(passed=passed, trials=trials, **changes)}
    if not passed:
        known |= {"verdict": Verdict.INCORRECT, "phase": Phase.VERIFY, "profile": None}
    return builders.evaluation(**known)


def statuses(results: list[GateResult]) -> dict[str, str]:
    return {result.name: result.status for result in results}


def test_a_good_one_passes_all_four() -> None:
    kinds = ("fresh", "in_place", "magnitudes", "large", "regression")
    found = checks.verification(verified(*map(trial, kinds)))
    assert set(statuses(found).values()) == {"passed"}
    assert "1e-07 of 2e-06" in found[1].reason


def test_a_constant_answer_is_never_promoted() -> None:
    constant = verified(trial("fresh")).model_copy(update={"signal": Signal.NONE})
    found = checks.verification(constant)
    assert statuses(found)["verification"] == "failed" and "constant" in found[0].reason


def test_without_failures_there_are_no_regressions() -> None:
    found = statuses(checks.verification(verified(trial("fresh"), trial("large"))))
    assert found == {
        "verification": "passed", "precision": "passed", "scales": "passed", "regressions": "not_applicable",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("broken", "failing", "before"),
    [
        (trial("fresh", "max |error| 3 is beyond"), "verification", {}),
        (trial("fresh", BUDGET), "precision", {"verification": "passed"}),
        (trial("large", "max |error| 3 is beyond"), "scales", {"verification": "passed", "precision": "passed"}),
        (trial("small", BUDGET), "scales", {"verification": "passed", "precision": "passed"}),
        (trial("regression", BUDGET), "regressions", {"verification": "passed", "scales": "passed"}),
    ],
)
def test_a_trial_fails_its_own_gate(broken: TrialReport, failing: str, before: dict[str, str]) -> None:
    trials = [trial("fresh"), broken] if failing != "regressions" else [trial("fresh"), trial("large"), broken]
    results = checks.verification(verified(*trials))
    found = statuses(results)
    assert [name for name, status in found.items() if status == "failed"] == [failing]
    assert broken.reason in next(result.reason for result in results if result.status == "failed")
    assert {name: found[name] for name in before} == before


def test_a_crash_at_another_scale() -> None:
    crashed = builders.evaluation(
        verdict=Verdict.CRASHED, phase=Phase.VERIFY, verify=None, profile=None, reason="SIGSEGV",
        failing=Regression(seed=1, weights_seed=2, variant="large"),
    )  # fmt: skip
    found = statuses(checks.verification(crashed))
    assert found["scales"] == "failed" and found["verification"] == "skipped"
    assert crashed.failing is not None
    assert statuses(checks.verification(crashed, [crashed.failing]))["regressions"] == "failed"


def test_a_rule_broken_in_any_process() -> None:
    broken = Violation(rule="clock", layer="timing", detail="too fast")
    second = builders.evaluation(verdict=Verdict.VIOLATION, violations=(broken,))
    found = checks.guard([builders.evaluation(), second])
    assert found.status == "failed" and found.reason == "timing/clock: too fast"
    assert checks.guard([builders.evaluation()]).status == "passed"


def test_dropped_variants_are_said() -> None:
    found = checks.verification(verified(trial("fresh"), dropped_variants=("large: the reference is not finite",)))
    assert found[2].status == "not_applicable" and "not finite" in found[2].reason


def test_shapes() -> None:
    right, refused = verified(trial("fresh")), builders.evaluation(
        verdict=Verdict.RAISED, phase=Phase.VERIFY, verify=None, profile=None, reason="RuntimeError: 256 rows"
    )  # fmt: skip
    wrong = verified(trial("fresh", "beyond"))
    assert checks.shapes(False, {1: right, 3: "the reference fails"}).status == "passed"
    assert checks.shapes(False, {1: refused}).status == "passed"
    assert checks.shapes(True, {1: refused}).status == "failed"
    assert checks.shapes(False, {1: right, 3: wrong}).reason.startswith("a batch of 3: incorrect")
    assert checks.shapes(False, {1: "no"}).status == "not_applicable"


def process(*lows: float, **others: Evaluation) -> ColdProcess:
    names = ("eager", "compile", "autotune_tf32")
    return ColdProcess(timed(dict(zip(names, lows, strict=False))), others)


def timed(lows: dict[str, float], **changes: Any) -> Evaluation:
    return builders.evaluation(profile=builders.profile(lows, matched="eager"), **changes)


def test_speed_is_the_worst_bound_of_all_processes_and_baselines() -> None:
    options = SpeedGate()
    good = process(2.0, 1.5, 1.2)
    assert speed(options, [good, good, good]).status == "passed"
    found = speed(options, [good, process(2.0, 1.5, 1.04), good])
    assert found.status == "failed" and "process 2" in found.reason and "over autotune_tf32" in found.reason
    assert len(found.data["table"]) == 9


def test_a_baseline_that_is_missing() -> None:
    without = process(2.0, 1.5)
    found = speed(SpeedGate(), [without])
    assert found.status == "failed" and "autotune could not be timed" in found.reason
    noted = speed(SpeedGate(missing="note"), [without])
    assert noted.status == "passed" and "autotune could not be timed" in noted.reason
    assert speed(SpeedGate(baselines=("eager", "matched")), [without]).status == "passed"


def test_another_kernel_by_the_least_favourable_bounds() -> None:
    options = SpeedGate(baselines=("eager",))
    # 2.0 [2.0, 2.04] over eager, theirs 1.5 and so up to 1.53.
    found = speed(options, [process(2.0, mine=timed({"eager": 1.5}))])
    row = next(row for row in found.data["table"] if row["baseline"] == "mine")
    theirs = timed({"eager": 1.5}).profile
    assert theirs is not None and row["low"] == pytest.approx(2.0 / theirs.ratios["eager"].high)
    assert speed(options, [process(2.0, mine=timed({"eager": 1.95}))]).status == "failed"
    wrong = verified(trial("fresh", "beyond"))
    assert "mine could not be timed: incorrect" in speed(options, [process(2.0, mine=wrong)]).reason


def test_no_time() -> None:
    void = builders.evaluation(verdict=Verdict.TIMING_VOID, profile=None, reason="foreign load")
    assert "process 2 has no time" in speed(SpeedGate(), [process(2, 2, 2), ColdProcess(void, {})]).reason


def test_roofline() -> None:
    over = builders.evaluation(verdict=Verdict.QUARANTINED, reason="less than")
    assert checks.roofline([over], Device.CPU).status == "not_applicable"
    assert checks.roofline([builders.evaluation(), over], Device.CUDA).status == "failed"
    assert checks.roofline([builders.evaluation()], Device.CUDA).status == "passed"


def whole(low: float = 1.2, **changes: Any) -> WholeModel:
    part = WholePart(
        task="t", key="k", candidate_digest="d", run="r", paths=("a",), calls=1, fallbacks=0, share=0.5, speedup=2.0
    )
    known: dict[str, Any] = {
        "model": "m.py", "key": "k", "device": Device.CPU, "precision": "tf32", "parts": (part,), "agreed": True,
        "original": builders.timing(), "patched": builders.timing(80.0), "speedup": builders.ratio("original", low),
        "covered": 0.5, "predicted": 1.3, "sandbox": "full", "stack": builders.stack(), "started": "now",
    }  # fmt: skip
    return WholeModel(**{**known, **changes})


def test_whole_model() -> None:
    options, stack = WholeModelGate(), builders.stack()
    assert checks.whole_model(options, whole(), "d", stack).status == "passed"
    assert checks.whole_model(options, None, "d", stack).status == "not_applicable"
    assert checks.whole_model(WholeModelGate(required=True), None, "d", stack).status == "failed"
    assert "another candidate" in checks.whole_model(options, whole(), "e", stack).reason
    assert "another stack" in checks.whole_model(options, whole(), "d", builders.stack(cpu="b")).reason
    assert checks.whole_model(options, whole(0.99), "d", stack).status == "failed"
    differs = whole(agreed=False, original=None, patched=None, speedup=None, reason="0.3 apart")
    assert "0.3 apart" in checks.whole_model(options, differs, "d", stack).reason


def test_another_library_than_the_rebuilt_one() -> None:
    examination = Examination.__new__(Examination)
    examination.results = [checks.passed("rebuild", "compiled anew", library="d" * 64)]
    mine, other = (builders.evaluation(build=builders.build(library_digest=digit * 64)) for digit in "de")
    assert examination._swapped([mine, mine]) is None
    found = examination._swapped([mine, other])
    assert found is not None and found.status == "failed" and "process 2" in found.reason
