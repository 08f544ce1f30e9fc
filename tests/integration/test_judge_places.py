"""An ill-conditioned column excuses nothing in the others, and the verdict says that eager itself is wrong there."""

from __future__ import annotations

import pytest

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device
from cuda_agent.core.records import Candidate, Task
from cuda_agent.judge.session import JudgeSession
from judge_specimens import eager_only, verified_in

pytestmark = pytest.mark.integration

TASK = Task(
    name="cancelling",
    source="""
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        left = (x.cumsum(1)[:, -1:] + 2.0e7) - 2.0e7
        return torch.cat([left, x.exp()], 1)

def get_inputs():
    return [torch.randn(96, 40)]

def get_init_inputs():
    return []
""",
)
_CANDIDATES = {
    "return super().forward(x)": "verified",
    "return torch.cat([x.sum(1, keepdim=True), x.exp()], 1)": "verified",
    "return torch.cat([x.sum(1, keepdim=True), x.exp() + 0.1], 1)": "incorrect",
    "y = super().forward(x); y[:, 7] += 0.3; return y": "incorrect",
    "y = super().forward(x); y[5, 7] += 0.3; return y": "incorrect",
    "y = super().forward(x); y[11] = y[12]; return y": "incorrect",
    "return torch.cat([x.sum(1, keepdim=True), x.bfloat16().exp().float()], 1)": "incorrect",
}


def test_a_column_that_cancels_excuses_itself_alone() -> None:
    with JudgeSession(TASK, JudgeOptions(device=Device.CPU, seed=5)) as session:
        eager_only(session).admit()
        with session.process(_candidate("return super().forward(x)"), None) as process:
            for body, wanted in _CANDIDATES.items():
                verdict, reason, report = verified_in(process, session, _candidate(body), trials=2)
                assert verdict == wanted, (body, reason)
                assert report is not None and report.trials[0].loose is True, body


def _candidate(body: str) -> Candidate:
    text = f"{TASK.source}\n\nclass ModelNew(Model):\n    def forward(self, x):\n        {body}\n"
    return Candidate(files={"model_new.py": text})
