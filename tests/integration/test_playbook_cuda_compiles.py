"""Every kind of generated CUDA kernel compiles, without spilling registers. Needs nvcc, no GPU."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.stack import find_nvcc
from cuda_agent.playbook.planner import plan
from playbook_cases import POINTWISE, REDUCTIONS, SCANS, WINDOWS
from playbook_harness import CUDA_FLAGS, graph_of

NVCC = find_nvcc()
pytestmark = [pytest.mark.integration, pytest.mark.skipif(NVCC is None, reason="no nvcc")]


@pytest.mark.parametrize("name", [*POINTWISE, *REDUCTIONS, *WINDOWS, *SCANS])
def test_kernels_compile(name: str, tmp_path: Path) -> None:
    function, inputs = {**POINTWISE, **REDUCTIONS, **WINDOWS, **SCANS}[name]
    model = function.eval() if hasattr(function, "eval") else function
    steps, _ = plan(graph_of(model, inputs), Device.CUDA, Precision.FP32, ())
    (tmp_path / "kernels").mkdir()
    for step in steps:
        for path, text in step.files.items():
            (tmp_path / path).write_text(text)
        source = next(path for path in step.files if path.endswith(".cu"))
        command = [str(NVCC), *CUDA_FLAGS[1:4], "-std=c++17", "-cubin", "-Xptxas", "-v", str(tmp_path / source)]
        done = subprocess.run([*command, "-o", str(tmp_path / "x.cubin")], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[:3000]
        spills = [line for line in done.stderr.splitlines() if "spill" in line and " 0 bytes spill stores" not in line]
        assert not spills, spills[:3]
