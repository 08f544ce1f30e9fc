"""A benchmark on the GPU: several tasks at work at once, one timed at a time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cuda_agent.bench.options import BenchOptions
from cuda_agent.bench.run import begin, go_on
from cuda_agent.bench.suite import problem_of
from cuda_agent.core.config import JudgeOptions, OptimizeOptions
from cuda_agent.core.enums import Device, Verdict
from cuda_agent.core.records import Task

pytestmark = [pytest.mark.gpu, pytest.mark.alone]

SOURCE = """import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1024, 1024)

    def forward(self, x):
        return EXPRESSION


def get_inputs():
    return [torch.randn(8192, 1024)]


def get_init_inputs():
    return []
"""
EXPRESSIONS = {
    "pointwise": "torch.relu(x * 2 + 1)",
    "rows": "torch.softmax(x, -1) * 2",
    "product": "torch.nn.functional.silu(self.linear(x))",
    "broken": "self.missing(x)",
}


def test_tasks_beside_each_other(tmp_path: Path) -> None:
    problems = [
        problem_of(Task(name=name, source=SOURCE.replace("EXPRESSION", text))) for name, text in EXPRESSIONS.items()
    ]
    options = BenchOptions(run=OptimizeOptions(judge=JudgeOptions(device=Device.CUDA, timing_budget_s=3.0)))
    said: list[str] = []
    bench = begin(["four"], problems, options, tmp_path / "bench")
    bench.jobs, bench.say = 4, said.append
    metrics = bench.play()
    results = {result.task.id: result for result in bench.directory.results()}
    assert results.pop("broken").outcome == "error"
    for name, result in results.items():
        evaluation = result.evaluation
        assert evaluation is not None and evaluation.verdict is Verdict.PASSED, (name, result.message)
        profile = evaluation.profile
        assert profile is not None and profile.compiled["compile"].graphs == 1
        assert profile.candidate.peak_memory_bytes is not None
        assert result.task.roofline is not None, name
    assert metrics.groups[0].passed.value == 0.75
    turns = [json.loads(line) for line in bench.directory.turns_log.read_text().splitlines()]
    clocks = [(turn["begun_s"], turn["left_s"]) for turn in turns if turn["kind"] == "clock"]
    others = [(turn["begun_s"], turn["left_s"]) for turn in turns if turn["kind"] == "device"]
    assert (
        clocks
        and others
        and not [(clock, other) for clock in clocks for other in others if clock[0] < other[1] and other[0] < clock[1]]
    ), "what is timed has the device alone"
    assert go_on(tmp_path / "bench").play() == metrics
