"""A product with what follows it compiles as the judge compiles it, without spills, and breaks none of its rules. Needs
nvcc, no GPU."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from fused_products import case, source_of
from library_kernels import graph_of

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.errors import DeviceError
from cuda_agent.core.records import Candidate
from cuda_agent.judge.build.compiler import Compiler, ObjectCache
from cuda_agent.judge.build.toolchain import Toolchain, find_toolchain
from cuda_agent.judge.guard import COMPILED, Compiled, check_texts
from cuda_agent.judge.guard.source import check_preprocessed
from cuda_agent.judge.guard.symbols import check_symbols
from cuda_agent.playbook.planner import plan
from cuda_agent.workspace.sandbox import resolve_level

pytestmark = pytest.mark.integration


def tools(arch: str) -> Toolchain:
    try:
        return find_toolchain(Device.CUDA, arch)
    except DeviceError as error:
        pytest.skip(str(error))


def files_of(name: str, dtype: torch.dtype = torch.bfloat16) -> tuple[str, Mapping[str, str]]:
    """The source, and it with its headers."""
    (step,), _ = plan(graph_of(*case(name, dtype)), Device.CUDA, Precision.FP32)
    source = source_of(step)
    return source, {path: text for path, text in step.files.items() if path == source or path.endswith(".cuh")}


def test_the_judge_takes_it(tmp_path: Path) -> None:
    source, files = files_of("gelu_residual")
    level = resolve_level(JudgeOptions(device=Device.CPU).sandbox)
    compiler = Compiler(tools("9.0"), ObjectCache(tmp_path), level, time.monotonic() + 300)
    outcome = compiler.compile(compiler.tools.nvcc_command(lambdas=False), files, source)
    assert outcome.output is not None and "warning" not in outcome.log, outcome.log
    candidate, compiled = Candidate(files=dict(files)), Compiled.load(outcome.output.with_name(COMPILED))
    assert len(compiled.kernels) == 4
    broken = [*check_texts(candidate), *check_preprocessed(compiled.passes, candidate, source, Device.CUDA)]
    assert not broken + list(check_symbols({source: outcome.output}, Device.CUDA))


@pytest.mark.parametrize("name", ["gate", "several"])
def test_nothing_is_spilled(name: str, tmp_path: Path) -> None:
    log = compiled_by_hand(name, torch.float16, "9.0", tmp_path)
    assert len(re.findall(r"\b0 bytes spill stores", log)) == 4, log


def test_it_compiles_for_devices_on_which_it_does_not_run(tmp_path: Path) -> None:
    assert "spill" in compiled_by_hand("gelu", torch.bfloat16, "8.0", tmp_path)


def compiled_by_hand(name: str, dtype: torch.dtype, arch: str, folder: Path) -> str:
    source, files = files_of(name, dtype)
    (folder / "kernels").mkdir()
    for path, text in files.items():
        (folder / path).write_text(text)
    command = [*tools(arch).nvcc_command(lambdas=False), "-Xptxas", "-v", "-c", source, "-o", "x.o"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr
