"""A user's model in a folder of its own: taken apart, one part made faster by hand, put together and measured."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from cuda_agent.agent.policies.registry import policy_name
from cuda_agent.agent.run import AgentRun
from cuda_agent.agent.storage.rundir import RunDirectory
from cuda_agent.agent.taskfile import load_task
from cuda_agent.core.config import JudgeOptions, OptimizeOptions
from cuda_agent.core.enums import Device, Verdict
from cuda_agent.core.errors import TaskError, UsageError
from cuda_agent.core.extraction import Extraction, WholeModel
from cuda_agent.core.records import Trajectory
from cuda_agent.release.extract.apply import apply, optimized
from cuda_agent.release.extract.extract import extract, read_extraction
from cuda_agent.release.extract.specs import WholeModelSource, whole_model_source
from cuda_agent.workspace.sandbox import sandbox_facts
from judge_specimens import uncompiled_judge

pytestmark = pytest.mark.integration

LAYERS = """
import torch
from torch import nn


class Gate(nn.Module):
    def __init__(self, width, index):
        super().__init__()
        self.index = index
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x, *, other, sharp=True):
        return torch.relu(x * self.scale + other)
"""
MODEL = """
import torch
from torch import nn
from layers import Gate


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(64, 64)
        self.gates = nn.ModuleList(Gate(64, i) for i in range(3))

    def forward(self, x):
        y = self.up(x)
        for gate in self.gates:
            x = gate(x, other=y)
        return x, {"last": gate(x[:8], other=y[:8])}


def get_inputs():
    return [torch.randn(32, 64)]


def get_init_inputs():
    return []
"""
KERNEL = """#include <cstdint>

extern "C" void gate_launcher(float* out, const float* x, const float* s, const float* y, int64_t n, int64_t width) {
  for (int64_t i = 0; i < n; ++i) {
    const float v = x[i] * s[i % width] + y[i];
    out[i] = v > 0.0f || v != v ? v : 0.0f;
  }
}
"""
BINDING = """#include <torch/types.h>
#include <torch/csrc/utils/pybind.h>
#include "../binding_registry.h"

extern "C" void gate_launcher(float* out, const float* x, const float* s, const float* y, int64_t n, int64_t width);

static torch::Tensor gate(torch::Tensor x, torch::Tensor s, torch::Tensor y) {
  TORCH_CHECK(x.is_contiguous() && y.is_contiguous() && s.is_contiguous(), "contiguous");
  auto out = torch::empty_like(x);
  gate_launcher(out.data_ptr<float>(), x.data_ptr<float>(), s.data_ptr<float>(), y.data_ptr<float>(), x.numel(),
                s.numel());
  return out;
}

static void register_gate(pybind11::module& m) { m.def("gate", &gate); }
REGISTER_BINDING(gate, register_gate);
"""
MODEL_NEW = """import torch
import torch.nn as nn

import cuda_extension


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(64))


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.module = Gate()

    def forward(self, x, other):
        return cuda_extension.gate(x, self.module.scale, other)
"""
FILES = {"model_new.py": MODEL_NEW, "kernels/gate.cpp": KERNEL, "kernels/gate_binding.cpp": BINDING}
OPTIONS = JudgeOptions(device=Device.CPU, timing_budget_s=0.5, trials=2)


def taken(whole: WholeModelSource, out: Path, model: str, **settings: int | float) -> Extraction:
    level = sandbox_facts().level
    return extract(whole, out, model=model, device=Device.CPU, level=level, **settings)[0]  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("project")
    (root / "code").mkdir()
    (root / "code" / "layers.py").write_text(LAYERS)
    (root / "code" / "model.py").write_text(MODEL)
    whole = whole_model_source(str(root / "code" / "model.py"), cwd=root)
    taken(whole, root / "out", "model.py")
    return root


@pytest.fixture(scope="module")
def run(project: Path) -> Trajectory:
    """By the policy `files:DIR`, which takes what somebody wrote by hand."""
    for name, text in FILES.items():
        path = project / "others" / "Gate" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    task = load_task(project / "out" / "tasks" / "Gate.py")
    options = OptimizeOptions(judge=OPTIONS, policy=policy_name(f"files:{project / 'others'}"))
    directory = RunDirectory.create(project / "runs" / "Gate", task.name)
    with directory.lock():
        manifest = directory.write_start(task, options, ())
        return AgentRun(task, options, options.policy, directory, manifest, judge=uncompiled_judge).play()


@pytest.fixture(scope="module")
def whole_model(project: Path, run: Trajectory) -> WholeModel:
    extraction = read_extraction(project / "out")
    parts, notes = optimized(extraction, [project / "runs"], anyway=True)
    assert not notes
    return apply(extraction, parts, OPTIONS, compiled=False)


def test_the_tasks_are_the_hot_parts(project: Path) -> None:
    extraction = read_extraction(project / "out")
    (gate,) = [task for task in extraction.tasks if task.kind == "Gate"]
    # The last one is also called with other shapes.
    assert gate.paths == ("gates.0", "gates.1") and gate.calls == 2
    assert {left.paths: left.reason for left in extraction.left_out}[("gates.2",)].startswith("it is called in diff")
    assert extraction.folders == (str((project / "code").resolve()),)
    assert 0 < extraction.covered <= 1
    for task in extraction.tasks:
        file = load_task(project / "out" / task.file)
        assert file.key == task.key
    assert "from layers" not in (project / "out" / gate.file).read_text()


def test_kernels_that_others_wrote_are_judged_like_any(run: Trajectory) -> None:
    assert run.outcome == "finished", run.message
    assert run.evaluation is not None and run.evaluation.verdict is Verdict.PASSED
    assert run.policy.startswith("files:/")


def test_the_whole_model_agrees_and_is_timed(whole_model: WholeModel) -> None:
    assert whole_model.agreed, whole_model.reason
    (part,) = whole_model.parts
    assert (part.calls, part.fallbacks) == (2, 0)
    assert whole_model.max_error is not None and whole_model.max_error < 1e-5
    assert whole_model.covered == part.share and whole_model.predicted > 0
    if whole_model.speedup is None:
        pytest.skip(f"the machine is too busy: {whole_model.reason}")
    assert whole_model.original is not None and whole_model.patched is not None


def test_a_part_that_is_wrong_in_the_whole_is_found(project: Path, run: Trajectory) -> None:
    extraction = read_extraction(project / "out")
    (part,), _ = optimized(extraction, [project / "runs" / "Gate"], anyway=True)
    wrong = {**part.candidate.files, "model_new.py": MODEL_NEW.replace("other)", "x)")}
    # As if somebody had swapped the files since.
    swapped = dataclasses.replace(part, candidate=part.candidate.model_copy(update={"files": wrong}))
    record = apply(extraction, [swapped], OPTIONS, compiled=False)
    assert not record.agreed and record.speedup is None and record.reason
    assert record.original is None


def test_runs_of_other_tasks_don_t_count(project: Path, run: Trajectory, tmp_path: Path) -> None:
    extraction = read_extraction(project / "out")
    other = extraction.model_copy(update={"tasks": tuple(t for t in extraction.tasks if t.kind != "Gate")})
    with pytest.raises(UsageError, match="a task of this extraction"):
        optimized(other, [project / "runs"])
    with pytest.raises(UsageError, match="holds no finished run"):
        optimized(extraction, [tmp_path])
    with pytest.raises(UsageError, match="holds an extraction already"):
        taken(WholeModelSource("x", "", ()), project / "out", "x")


def test_a_model_that_kills_its_process_is_the_user_s(tmp_path: Path) -> None:
    source = MODEL.replace("from layers import Gate", "Gate = None").replace("y = self.up(x)", "import os; os._exit(3)")
    with pytest.raises(TaskError, match="ended its process"):
        taken(WholeModelSource("dies", source.replace("Gate(64, i)", "nn.Identity()"), ()), tmp_path / "out", "dies.py")
