"""The promotion gate with real builds on the CPU: a good kernel is promoted, others fail at their own gate."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest

from cuda_agent.cli.main import run
from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device, Verdict
from cuda_agent.core.files import cache_dir
from cuda_agent.core.records import Candidate, Evaluation
from cuda_agent.judge.session import JudgeSession
from cuda_agent.release import checks
from cuda_agent.release.gate import VerificationGate
from cuda_agent.release.lock import read_lock
from cuda_agent.release.promote import Examination, promote
from cuda_agent.release.records import GateResult, Promotion
from cuda_agent.release.regressions import read_failures
from cuda_agent.release.speed import ColdProcess, speed
from cuda_agent.release.subject import load_subject
from judge_specimens import eager_only
from promotion_cases import DROPS_NAN, FIXED_ROWS, HALF, KERNEL, NARROW, SLOW, TASK, TORCH, candidate, gate, workspace

pytestmark = pytest.mark.integration

GATE = """
lock: stack.lock
sandbox: any
rebuild: {reproducible: none}
verification: {trials: 2, shapes: none}
speed: {baselines: [eager], timing_budget_s: 1.0}
"""


@pytest.mark.alone
def test_a_good_kernel_is_promoted_until_its_evidence_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    read_lock().save(tmp_path / "stack.lock")
    Path("gate.yaml").write_text(GATE)
    workspace(tmp_path / "good", candidate())
    command = ["promote", "good", "--gate", "gate.yaml", "--locked", "--registry", "kept", "--json"]
    for _ in range(3):
        code = run([*command, "--junit", "junit.xml", "--html", "report.html"])
        said = json.loads(capsys.readouterr().out)
        if code == 0 or [gate["name"] for gate in said["gates"] if gate["status"] == "failed"] != ["speed"]:
            # A machine that is busy with something else shows no speed.
            break
    found = Promotion.model_validate({name: value for name, value in said.items() if name != "passed"})
    assert code == 0, found.first_failure
    states = {gate.name: gate.status for gate in found.gates}
    assert [name for name, status in states.items() if status == "not_applicable"] == [
        "regressions", "sanitize", "shapes", "roofline", "whole_model",
    ]  # fmt: skip
    assert found.entry is not None and (tmp_path / "kept" / "entries" / found.entry / "evaluations").is_dir()
    assert ET.parse("junit.xml").getroot().attrib["failures"] == "0" and "promoted" in Path("report.html").read_text()
    assert run(["promoted", "--registry", "kept", "--check"]) == 0
    assert run(["export", f"kept/entries/{found.entry}", "--as", "package", "--out", "exported"]) == 0
    (tmp_path / "kept" / "entries" / found.entry / "candidate" / "model_new.py").write_text("# another\n")
    assert run(["promoted", "--registry", "kept", "--check"]) == 9


def test_another_stack_and_another_shape_each_fail_their_own_gate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One candidate for both, since each gate says what it finds."""
    # What other tests compiled is clean enough here.
    monkeypatch.setattr(Examination, "_cache", lambda self, name: cache_dir() / "build")
    here = read_lock()
    here.model_copy(update={"software": {**here.software, "torch": "1.0"}}).save(tmp_path / "stack.lock")
    asked = VerificationGate(trials=1, batch_sizes=(600,))
    subject = load_subject(workspace(tmp_path / "fixed", candidate(FIXED_ROWS)))
    examined = promote(
        subject, gate(lock=tmp_path / "stack.lock", verification=asked), {}, tmp_path / "kept", lambda *said: None
    )
    promotion = examined.promotion
    found = {one.name: one for one in promotion.gates}
    assert not promotion.passed
    assert [name for name, one in found.items() if one.status == "failed"] == ["lock", "shapes"]
    assert "torch is" in found["lock"].reason and "locked '1.0'" in found["lock"].reason
    assert found["shapes"].reason.startswith("a batch of 600: incorrect")
    assert {found[name].status for name in ("rebuild", "guard", "verification", "precision", "scales")} == {"passed"}
    assert found["speed"].status == "skipped"
    assert {one.batch for one in read_failures(tmp_path / "kept", TASK.key)} == {600}
    assert set(examined.evaluations) == {"process-1", "batch-600"}


@pytest.fixture(scope="module")
def session() -> Iterator[JudgeSession]:
    """As the gate's first process, eager alone as a baseline."""
    options = JudgeOptions(device=Device.CPU, trials=2, variants="wide", timing_budget_s=0.5, host_memory_mib=8192)
    with JudgeSession(TASK, options) as opened:
        eager_only(opened).admit()
        yield opened


def failing(evaluation: Evaluation) -> list[GateResult]:
    results = [checks.guard([evaluation]), *checks.verification(evaluation)]
    if evaluation.verdict in (Verdict.PASSED, Verdict.QUARANTINED):
        results.append(speed(gate().speed, [ColdProcess(evaluation, {})]))
    return [result for result in results if result.status == "failed"]


@pytest.mark.parametrize(
    ("name", "of", "reason"),
    [
        ("precision", candidate(HALF), "exceeds its budget"),
        ("scales", candidate(DROPS_NAN), "trial nan"),
        ("guard", candidate(model=TORCH), "syntax/"),
        ("speed", candidate(SLOW), "a lower bound of 1.05x"),
        ("verification", candidate(KERNEL.replace("* scale[i]", "* 1.5f")), "trial fresh"),
    ],
)
def test_each_fails_its_own_gate(session: JudgeSession, name: str, of: Candidate, reason: str) -> None:
    (found,) = failing(session.evaluate(of))
    assert found.name == name and reason in found.reason


def test_what_failed_once_is_tried_again(session: JudgeSession) -> None:
    wrong = session.verify(candidate(NARROW))
    assert [one.name for one in failing(wrong)] == ["scales"]
    assert wrong.failing is not None and wrong.failing.variant == "large"
    again = session.options.model_copy(update={"variants": "usual", "regressions": (wrong.failing,)})
    usual, session.options = session.options, again
    try:
        assert [one.name for one in failing(session.verify(candidate(NARROW)))] == ["regressions"]
        good = session.verify(candidate())
    finally:
        session.options = usual
    assert good.verify is not None and good.verify.passed and good.failing is None
    assert good.verify.trials[-1].kind == "regression"
