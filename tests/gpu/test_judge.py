"""The judge on a real GPU: a workspace in the published layout, and candidates that must fail."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device, Verdict
from cuda_agent.core.records import Candidate
from cuda_agent.judge.session import JudgeSession
from cuda_agent.reward import reward
from published_workspace import axpby_candidate, axpby_task

pytestmark = [pytest.mark.gpu, pytest.mark.alone]


@pytest.fixture(scope="module")
def session() -> Iterator[JudgeSession]:
    options = JudgeOptions(device=Device.CUDA, compiler_jobs=4, timing_budget_s=5.0, call_timeout_s=20.0)
    with JudgeSession(axpby_task(), options) as opened:
        opened.admit()
        yield opened


def edited(old: str, new: str) -> Candidate:
    files = dict(axpby_candidate(Device.CUDA).files)
    files["kernels/axpby.cu"] = files["kernels/axpby.cu"].replace(old, new)
    return Candidate(files=files)


def test_the_published_layout_passes(session: JudgeSession) -> None:
    evaluation = session.evaluate(axpby_candidate(Device.CUDA))
    assert evaluation.verdict is Verdict.PASSED, evaluation.reason
    assert evaluation.profile is not None
    assert set(evaluation.profile.baselines) >= {"eager", "compile"}
    assert reward(evaluation).value in (1, 2, 3)


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        ("alpha * a.x + beta * b.x", "alpha * a.x", Verdict.INCORRECT),
        ("if (i < count) {", "if (i < count - 1) {", Verdict.INCORRECT),
        ("float4 a = x[i]", "float4 a = x[i + (1ll << 40)]", Verdict.CRASHED),
        ("if (i < count) {", "while (alpha > 0.0f) { __nanosleep(100); } if (i < count) {", Verdict.TIMED_OUT),
    ],
)
def test_faults_have_their_own_verdict(session: JudgeSession, old: str, new: str, verdict: Verdict) -> None:
    evaluation = session.evaluate(edited(old, new))
    assert evaluation.verdict in (verdict, Verdict.RAISED), (evaluation.verdict, evaluation.reason)


def test_the_next_evaluation_is_right(session: JudgeSession) -> None:
    assert session.evaluate(axpby_candidate(Device.CUDA)).verdict is Verdict.PASSED
