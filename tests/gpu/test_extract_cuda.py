"""A model taken apart on a GPU, by what ran on it, and put together with a kernel of CUDA."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuda_agent.agent.optimize import optimize
from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device
from cuda_agent.release.extract.apply import apply, optimized
from cuda_agent.release.extract.extract import extract, read_extraction
from cuda_agent.release.extract.specs import whole_model_source
from cuda_agent.workspace.sandbox import sandbox_facts

pytestmark = [pytest.mark.gpu, pytest.mark.integration, pytest.mark.alone]

MODEL = """
import torch
from torch import nn


class Tail(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x, y):
        return torch.sigmoid(torch.relu(x * self.scale + y)) * y


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.small = nn.Linear(1024, 1024)
        self.tails = nn.ModuleList(Tail(1024) for _ in range(4))

    def forward(self, x):
        y = self.small(x)
        for tail in self.tails:
            x = tail(x, y)
        return x


def get_inputs():
    return [torch.randn(8192, 1024)]


def get_init_inputs():
    return []
"""


def test_a_model_is_faster_with_a_faster_part(tmp_path: Path) -> None:
    path = tmp_path / "code" / "model.py"
    path.parent.mkdir()
    path.write_text(MODEL)
    whole = whole_model_source(str(path), cwd=tmp_path)
    extraction, note = extract(
        whole, tmp_path / "out", model="model.py", device=Device.CUDA, level=sandbox_facts().level
    )
    # CUPTI was there: the GPU's own times.
    assert note == ""
    (tail,) = [task for task in extraction.tasks if task.kind == "Tail"]
    assert len(tail.paths) == 4 and 0.3 < tail.share < 1.0
    assert sum(task.time_us for task in extraction.tasks) + extraction.outside_us == pytest.approx(
        extraction.total_us, rel=0.05
    )
    optimize(tmp_path / "out" / tail.file, out=tmp_path / "runs" / "Tail", device="cuda", timing_budget_s=2.0)
    parts, _ = optimized(read_extraction(tmp_path / "out"), [tmp_path / "runs"], anyway=True)
    record = apply(extraction, parts, JudgeOptions(device=Device.CUDA, timing_budget_s=3.0))
    assert record.agreed, record.reason
    assert record.parts[0].calls == 4 and record.parts[0].fallbacks == 0
    assert record.speedup is not None, record.reason
    assert record.speedup.low > 1.0
    assert record.speedup.value == pytest.approx(record.predicted, rel=0.35)
