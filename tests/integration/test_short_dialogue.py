"""The short dialogue: a small model answers with one kernel file. Scripted answers, real workspace and judge."""

from pathlib import Path

import pytest

from cuda_agent import optimize
from cuda_agent.core.config import LanguageModelOptions
from cuda_agent.core.records import Trajectory
from integration.scripted_server import MODEL, Say, ScriptedServer

pytest.importorskip("openai")
pytestmark = pytest.mark.integration

TASK = '''"""Adds a scaled input."""
import torch
from torch import nn

FACTOR = 2.0


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x, y):
        return torch.relu(x * self.scale * FACTOR) + y


def get_inputs():
    return [torch.randn(64, 500), torch.randn(64, 500)]


def get_init_inputs():
    return [500]
'''
KERNEL = """void launch(const float* x, const float* y, const float* scale, float* out) {
#pragma omp parallel for
  for (int64_t i = 0; i < 32000; ++i) out[i] = std::max(0.0f, x[i] * scale[i % 500] * 2.0f) + y[i];
}
"""


def fenced(text: str) -> Say:
    return Say(f"Here it is.\n```cpp\n{text}```\nGood luck!")


def play(tmp_path: Path, answers: list[Say]) -> tuple[Trajectory, ScriptedServer]:
    task = tmp_path / "scaled.py"
    task.write_text(TASK)
    with ScriptedServer(answers) as server:
        llm = LanguageModelOptions(model=MODEL, base_url=server.base_url, dialogue="short")
        run = optimize(
            task, out=tmp_path / "run", policy="llm", llm=llm, turns=len(answers), device="cpu", timing_budget_s=1.0
        )
    assert server.problems == []
    return run, server


def test_a_kernel_in_few_turns(tmp_path: Path) -> None:
    run, server = play(
        tmp_path,
        [
            Say("I would use a loop."),
            fenced(KERNEL.replace("scale[i % 500]", "scale[i % 500")),
            fenced(KERNEL.replace("% 500", "% 400")),
            fenced(KERNEL),
            fenced(KERNEL.replace("launch(", "start(")),
        ],
    )
    prompt, *later = (request.body["messages"] for request in server.requests)
    assert [message["role"] for message in prompt] == ["user"] and "tools" not in server.requests[0].body
    text = prompt[0]["content"]
    assert "FACTOR = 2.0" in text and "def get_inputs" not in text and "import torch" not in text
    assert "`void launch(const float* x, const float* y, const float* scale, float* out);`" in text
    assert "- x: [64, 500], 32000 elements\n" in text and "- scale: [500]\n" in text and len(text) < 1200
    assert "model = Model(500)" in text
    heard = [messages[-1]["content"] for messages in later]
    assert heard[0].startswith("There is no fenced block")
    assert heard[1].startswith("It doesn't compile: line 3:90: error: expected")
    assert heard[2].startswith("Not accepted (incorrect): trial fresh")
    # The fifth answer begins a new attempt.
    assert [len(messages) for messages in later] == [3, 5, 7, 1]
    assert all(len(text) < 520 for text in heard[:3])
    passed = [turn.results[-1].data["verdict"] for turn in run.turns[1:]]
    assert passed == ["build_failed", "incorrect", "passed", "build_failed"]
    assert run.evaluation is not None and run.evaluation.verdict == "passed"
    kept = (tmp_path / "run" / "workspace" / "kernels" / "kernel.cpp").read_text()
    assert kept.endswith(KERNEL) and "#include <cstdint>" in kept


def test_what_has_no_form_is_not_covered(tmp_path: Path) -> None:
    task = tmp_path / "nested.py"
    task.write_text(
        TASK.replace("def forward(self, x, y):", "def forward(self, pair):\n        x, y = pair").replace(
            "return [torch.randn(64, 500), torch.randn(64, 500)]",
            "return [[torch.randn(64, 500), torch.randn(64, 500)]]",
        )
    )
    with ScriptedServer([fenced(KERNEL)]) as server:
        llm = LanguageModelOptions(model=MODEL, base_url=server.base_url, dialogue="short")
        run = optimize(task, out=tmp_path / "run", policy="llm", llm=llm, device="cpu", timing_budget_s=1.0)
    assert run.outcome == "not_covered" and "nested" in run.message
