"""A Triton kernel beside the judge's baselines, as a comparison."""

from __future__ import annotations

import pytest
from test_triton_comparison_guard import TRITON

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device, Verdict
from cuda_agent.core.records import Candidate, Task
from cuda_agent.judge.session import JudgeSession

pytestmark = pytest.mark.gpu

TASK = Task(
    name="doubled",
    source="""
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, factor=2.0):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x * self.factor


def get_inputs():
    return [torch.randn(1024, 1024)]


def get_init_inputs():
    return []
""",
)


def test_a_right_one_is_timed_and_a_wrong_one_isn_t() -> None:
    pytest.importorskip("triton")
    options = JudgeOptions(device=Device.CUDA, comparison="triton", timing_budget_s=2.0)
    with JudgeSession(TASK, options) as session:
        right = session.evaluate(Candidate(files={"model_new.py": TRITON}))
        wrong = session.evaluate(Candidate(files={"model_new.py": TRITON.replace("* factor", "* 3.0")}))
    assert right.verdict is Verdict.PASSED, (right.reason, right.log_tail, right.violations)
    assert right.comparison == "triton" and right.build is None and right.profile is not None
    assert right.kernels is not None and right.kernels.own_share > 0.5, right.kernels
    assert wrong.verdict is Verdict.INCORRECT and wrong.comparison == "triton"
