"""GPU time by kernel symbol in a real evaluation: own kernels are told from torch's and from the vendors'."""

from __future__ import annotations

import pytest
import torch

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device, Verdict
from cuda_agent.core.records import Candidate
from cuda_agent.judge.guard.kernels import judge_kernels
from cuda_agent.judge.session import JudgeSession
from cuda_agent.playbook.proposal import propose
from cuda_agent.workers.inside.kernels import with_kernels
from judge_specimens import TASK

pytestmark = [pytest.mark.gpu, pytest.mark.integration]


@pytest.mark.alone
def test_own_kernels_carry_an_honest_candidate() -> None:
    with JudgeSession(TASK, JudgeOptions(device=Device.CUDA)) as session:
        proposal = propose(session.graph(), Device.CUDA, session.options.precision)
        candidate = Candidate(files=dict(proposal.files))
        for evaluation in (session.verify(candidate), session.evaluate(candidate)):
            assert evaluation.violations == ()
            assert evaluation.kernels is not None
            assert evaluation.kernels.own_share > 0.9, evaluation.kernels
            assert evaluation.notes == ()
        assert evaluation.verdict is Verdict.PASSED, evaluation.reason


@pytest.mark.parametrize(
    ("name", "origin", "rules"),
    [("relu", "torch", {"torch_compute"}), ("product", "library", set()), ("zeros", "copy", set())],
)
def test_origin_of_what_torch_runs(name: str, origin: str, rules: set[str]) -> None:
    x = torch.randn(512, 512, device="cuda")
    calls = {"relu": lambda: torch.relu(x), "product": lambda: x @ x, "zeros": lambda: torch.zeros_like(x)}
    calls[name]()
    _, kernels = with_kernels(calls[name])
    found = judge_kernels(kernels.rows, frozenset(), recordable=True, error=kernels.error)
    assert found.report is not None, found.notes
    assert {kernel.origin for kernel in found.report.kernels} <= {origin, "copy"}
    assert origin in {kernel.origin for kernel in found.report.kernels}
    assert {violation.rule for violation in found.violations} == rules
