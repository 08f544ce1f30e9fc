"""Every kind of generated CUDA kernel compiles, without spilling registers but for those with special functions, which
take far longer than a few spills. Needs nvcc, no GPU."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.stack import find_nvcc
from cuda_agent.playbook.codegen import kernel_files
from cuda_agent.playbook.planner import plan
from cuda_agent.playbook.skills.recurrent.skill import kernel
from playbook_cases import POINTWISE, REDUCTIONS, SCANS, WINDOWS
from playbook_harness import CUDA_FLAGS, graph_of

NVCC = find_nvcc()
pytestmark = [pytest.mark.integration, pytest.mark.skipif(NVCC is None, reason="no nvcc")]


@pytest.mark.parametrize("name", [*POINTWISE, *REDUCTIONS, *WINDOWS, *SCANS])
def test_kernels_compile(name: str, tmp_path: Path) -> None:
    function, inputs = {**POINTWISE, **REDUCTIONS, **WINDOWS, **SCANS}[name]
    model = function.eval() if hasattr(function, "eval") else function
    steps, _ = plan(graph_of(model, inputs), Device.CUDA, Precision.FP32, ())
    for step in steps:
        compiles(step.files, next(path for path in step.files if path.endswith(".cu")), tmp_path)


@pytest.mark.parametrize(("kind", "hidden"), [(0, 20), (0, 256), (0, 1024), (1, 512), (3, 4096)])
def test_recurrent_layers_compile(kind: int, hidden: int, tmp_path: Path) -> None:
    files = kernel_files(Device.CUDA, "layer", kernel(kind, hidden, Device.CUDA))
    said = compiles(files, "kernels/layer.cu", tmp_path)
    frames = [line for line in said.splitlines() if "stack frame" in line]
    assert frames and all(line.split()[0] == "0" for line in frames), frames


def compiles(files: Mapping[str, str], source: str, folder: Path) -> str:
    """What the assembler says."""
    (folder / "kernels").mkdir(exist_ok=True)
    for path, text in files.items():
        (folder / path).write_text(text)
    command = [str(NVCC), *CUDA_FLAGS[1:4], "-std=c++17", "-cubin", "-Xptxas", "-v", str(folder / source)]
    done = subprocess.run([*command, "-o", str(folder / "x.cubin")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:3000]
    spills = [line for line in done.stderr.splitlines() if "spill" in line and " 0 bytes spill stores" not in line]
    assert "kernels/special.cuh" in files or not spills, spills[:3]
    return done.stderr
