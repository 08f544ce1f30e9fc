"""A baseline is one file: put where forms are found, it is timed beside eager, and everything knows its label."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import cuda_agent

EXAMPLE = Path(__file__).parents[1] / "examples" / "toy_baseline" / "traced.py"
pytestmark = pytest.mark.integration

_PROGRAM = """
from pathlib import Path

import cuda_agent
from cuda_agent.core.baselines import Baseline, forms
from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device
from cuda_agent.core.records import Candidate, Task
from cuda_agent.judge import JudgeSession, profile_candidate
from cuda_agent.core.records import OutputErrors, TrialReport, VerifyReport
from cuda_agent.release.gate import SpeedGate

SOURCE = '''
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2
def get_inputs():
    return [torch.randn(256, 1024)]
def get_init_inputs():
    return []
'''
CANDIDATE = Candidate(files={"model_new.py": SOURCE.replace("class Model(", "class ModelNew(")})
VERIFIED = VerifyReport(
    passed=True,
    trials=(
        TrialReport(
            kind="fresh", passed=True, outputs=(OutputErrors(candidate_error=1e-7, eager_error=1e-7),)
        ),
    ),
)
options = JudgeOptions(device=Device.CPU, timing_budget_s=1.0, seed=1)
package = Path(cuda_agent.__file__).parents[1]
with JudgeSession(Task(name="toy", source=SOURCE), options, importable=(package,)) as session:
    reference = session.reference
    with session.process(CANDIDATE, None) as process:
        process.release()
        reference.release()
        report = profile_candidate(session, process, VERIFIED, floor=2e-6, torch_computes=True).report
assert report is not None and report.failed_baselines == {}, report
assert set(report.baselines) == {"eager", "compile", "traced_tf32"}, set(report.baselines)
assert report.compiled["traced_tf32"].graphs == 1 and report.ratios["traced_tf32"].value > 0
assert Baseline.parse("traced_tf32").label == "torch.compile, graph only (tf32)"
assert SpeedGate(baselines=("eager", "traced")).baselines == ("eager", "traced")
"""


def test_a_form_is_one_file(tmp_path: Path) -> None:
    package = tmp_path / "cuda_agent"
    shutil.copytree(Path(cuda_agent.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(EXAMPLE, package / "core" / "baselines")
    (tmp_path / "program.py").write_text(_PROGRAM)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, str(tmp_path / "program.py")]
    ran = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr[-4000:]
