"""A workspace's SKILL.md, taken at its word: who copies its patterns, and changes for `cpu` what it says, passes."""

from __future__ import annotations

import re

import pytest

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device
from cuda_agent.core.records import Candidate, Task
from cuda_agent.judge import guard
from cuda_agent.judge.session import JudgeSession
from cuda_agent.workspace.layout import fixed_files
from judge_specimens import eager_only

pytestmark = pytest.mark.integration

TASK = """import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, alpha):
        super().__init__()
        self.alpha = alpha

    def forward(self, x, y):
        return self.alpha * x + y


def get_inputs():
    return [torch.randn(64, 257), torch.randn(64, 257)]


def get_init_inputs():
    return [1.5]
"""


def patterns() -> dict[str, str]:
    """File -> the block that follows its name."""
    page = fixed_files()["SKILL.md"]
    found = dict(re.findall(r"`(kernels/scale_add\w*\.\w+)`:[^`]*```\w+\n(.*?)```", page, re.DOTALL))
    model = re.search(r"## `model_new.py`.*?```python\n(.*?)```", page, re.DOTALL)
    assert model is not None
    return {**found, "model_new.py": model.group(1)}


def on_cpu(binding: str) -> str:
    """Without the CUDA headers, the `is_cuda` check and the stream, as the page says."""
    lines = [line for line in binding.splitlines() if "cuda_runtime" not in line and "CUDAStream.h" not in line]
    text = "\n".join(lines).replace("x.is_cuda() && ", "")
    text = re.sub(r",\s*cudaStream_t stream", "", text)
    return re.sub(r",\s*c10::cuda::getCurrentCUDAStream\(\)", "", text).replace("long long n", "int64_t n") + "\n"


def test_the_pages_patterns_pass_on_the_cpu() -> None:
    page = patterns()
    page["kernels/scale_add.cpp"] = re.search(  # type: ignore[union-attr]
        r"## Pattern on `cpu`.*?```cpp\n(.*?)```", fixed_files()["SKILL.md"], re.DOTALL
    ).group(1)
    page["kernels/scale_add_binding.cpp"] = on_cpu(page["kernels/scale_add_binding.cpp"])
    page.pop("kernels/scale_add.cu", None)
    candidate = Candidate(files=page)
    assert not guard.check_texts(candidate)
    options = JudgeOptions(device=Device.CPU, timing_budget_s=1.0)
    with JudgeSession(Task(name="scale_add", source=TASK), options) as session:
        evaluation = eager_only(session).verify(candidate)
    assert evaluation.verify is not None and evaluation.verify.passed, evaluation.reason + evaluation.log_tail
