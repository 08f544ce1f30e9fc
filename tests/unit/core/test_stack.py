"""The stack is read without torch, and a missing tool is an absent field."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cuda_agent.core import stack


def test_reads_this_machine_without_importing_torch() -> None:
    code = "import sys; from cuda_agent.core.stack import read_stack; s = read_stack(); print('torch' in sys.modules, s.cpu_cores)"  # noqa: E501
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert out[0] == "False"
    assert int(out[1]) >= 1


def test_command_that_cannot_run_is_none() -> None:
    assert stack.first_line("no-such-command-here") is None
    assert stack.first_line("false") is None
    assert stack.first_line("echo", "one") == "one"


def test_gpus_are_read_from_the_drivers_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA H200, GPU-1, 580.1, 9.0, 700.00, 1980, 3201, 143771'\necho broken\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    gpus, driver = stack.query_gpus()
    assert (len(gpus), driver) == (1, "580.1")
    assert (gpus[0].compute_capability, gpus[0].memory_mib, gpus[0].power_limit_w) == ("9.0", 143771, 700.0)


def test_no_driver_means_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert stack.query_gpus() == ((), None)
