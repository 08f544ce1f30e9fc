"""Modules that can't be captured whole: their parts run kernels, the rest stays in PyTorch."""

from __future__ import annotations

import ast
import functools
from collections.abc import Sequence
from pathlib import Path

import pytest

from cuda_agent.agent.run import AgentRun
from cuda_agent.agent.storage.rundir import RunDirectory
from cuda_agent.agent.taskfile import load_task
from cuda_agent.cli.main import run
from cuda_agent.cli.parts import by_parts
from cuda_agent.core.config import JudgeOptions, OptimizeOptions
from cuda_agent.core.enums import Device
from cuda_agent.core.extraction import Extraction, WholeModel
from cuda_agent.release.extract import apply as applying
from cuda_agent.report import rows as reported
from cuda_agent.report.tables.suite import RunRow
from judge_specimens import uncompiled_judge

pytestmark = pytest.mark.integration

#: rows are routed by `nonzero`, and what follows depends on a value.
ROUTED = """
import torch
from torch import nn


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Sequential(nn.LayerNorm(48), nn.Softmax(-1))
        self.experts = nn.ModuleList(nn.Linear(48, 48) for _ in range(3))

    def forward(self, x):
        weights = self.router(x)[:, :3]
        top, out = weights.argmax(-1), torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            rows = (top == index).nonzero().squeeze(-1)
            out = out.index_add(0, rows, expert(x[rows]) * weights[rows, index].unsqueeze(-1))
        return out


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.mixture = Experts()
        self.small = nn.Sequential(nn.ReLU(), nn.LayerNorm(48))
        self.large = nn.Sequential(nn.Tanh(), nn.LayerNorm(48))

    def forward(self, x):
        h = x + self.mixture(x)
        return self.large(h) if h.abs().max() > 1e4 else self.small(h)


def get_inputs():
    return [torch.randn(64, 48)]


def get_init_inputs():
    return []
"""
INLINE = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        h = torch.relu(x)
        return h / 2 if h.max() > 100 else torch.softmax(h, -1)


def get_inputs():
    return [torch.randn(8, 16)]


def get_init_inputs():
    return []
"""
OPTIONS = OptimizeOptions(judge=JudgeOptions(device=Device.CPU, timing_budget_s=0.5, trials=2))


def _several(files: Sequence[Path], out: Path) -> tuple[list[RunRow], int]:
    rows = []
    for file in files:
        task = load_task(file)
        directory = RunDirectory.create(out / task.name, task.name)
        with directory.lock():
            manifest = directory.write_start(task, OPTIONS, ())
            run = AgentRun(task, OPTIONS, OPTIONS.policy, directory, manifest, judge=uncompiled_judge)
            rows.append(RunRow(task.name, run.play()))
    return rows, 0


def test_a_routed_module_with_a_branch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "routed.py").write_text(ROUTED)
    folder = tmp_path / "out"
    monkeypatch.setattr(applying, "apply", functools.partial(applying.apply, compiled=False))
    # How fast they are is no matter here: other tests run beside this one.
    for module in (applying, reported):
        monkeypatch.setattr(module, "closest_attempt", lambda evaluation: None)
    answer = by_parts(tmp_path / "routed.py", OPTIONS, folder, _several, as_json=False)
    answer.print(as_json=False)
    record = answer.document
    assert isinstance(record, WholeModel) and record.agreed, record
    # The mixture as a whole has few operators, but no graph: its router is a part, its experts take what is routed.
    assert {part.paths: (part.calls, part.fallbacks) for part in record.parts} == {
        ("mixture.router",): (1, 0),
        ("small",): (1, 0),
    }
    reasons = {left.paths: left.reason for left in record.left_out}
    assert "rows = (top == index).nonzero().squeeze(-1) can't be captured: " in reasons[("mixture",)]
    assert reasons[("mixture.experts.0", "mixture.experts.1", "mixture.experts.2")].startswith("its call depends on")
    assert reasons[("forward",)] == "the steps between the parts"
    assert WholeModel.read(folder).left_out == record.left_out
    assert "stays in PyTorch" in capsys.readouterr().out

    there = ["--name", "routed", "--out", str(tmp_path / "project")]
    assert run(["export", str(folder), "--as", "package", "--anyway", *there]) == 0
    project = tmp_path / "project"
    for file in project.rglob("*.py"):
        ast.parse(file.read_text())
    kernels = {path.parts[-4] for path in project.glob("src/routed/*/native/kernels/*.cpp")}
    assert len(kernels) == 2 and all(name in (project / "src/routed/__init__.py").read_text() for name in kernels)
    assert "the steps between the parts" in (project / "README.md").read_text()


def test_nothing_that_could_be_a_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "inline.py").write_text(INLINE)
    words = ["optimize", str(tmp_path / "inline.py"), "--parts", "--device", "cpu", "--out", str(tmp_path / "out")]
    assert run(words) == 3
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert "all its steps stand in the model's own forward" in line and "into submodules" in line
    assert not Extraction.read(tmp_path / "out").tasks
