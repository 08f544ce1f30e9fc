"""Tasks that can't be judged, through the real command: one line, exit code 3, a run directory that says so."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cuda_agent.core.enums import Signal
from cuda_agent.core.records import Trajectory
from integration.scripted_runs import SOURCE, write_task

pytestmark = pytest.mark.integration
COMMAND = [sys.executable, "-c", "from cuda_agent.cli.main import main; main()"]

#: one for each place where it comes out; test_judge_admission.py has every cause.
BAD = {
    "inputs_raise": (SOURCE.replace("return [torch.randn(512, 512),", "return [1 / 0,"), "ZeroDivisionError"),
    "no_model_at_run_time": (SOURCE + "\ndel Model\n", "Model"),
    "stochastic": (SOURCE.replace("torch.sigmoid(y)", "torch.bernoulli(torch.sigmoid(y))"), "stochastic"),
    "syntax": ("class Model(:\n", "syntax error"),
}


def agent(*arguments: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONWARNINGS": "error::ResourceWarning"}
    return subprocess.run(
        [*COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False, env=environment,
        **options,  # type: ignore[call-overload]
    )  # fmt: skip


def error_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("error: ")]


@pytest.mark.parametrize("name", BAD)
def test_each_is_one_line(name: str, tmp_path: Path) -> None:
    import re

    source, says = BAD[name]
    task, out = write_task(tmp_path / "tasks", source), tmp_path / "run"
    done = agent("optimize", task, "--device", "cpu", "--out", out)
    assert done.returncode == 3, done.stderr
    (line,) = error_lines(done.stderr)
    assert re.search(says, line), line
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    if name != "syntax":
        assert Trajectory.read(out).outcome == "error"


@pytest.mark.alone
def test_a_constant_answer_is_judged_and_never_paid(tmp_path: Path) -> None:
    task, out = write_task(tmp_path / "tasks", SOURCE.replace("torch.sigmoid(y)", "0")), tmp_path / "run"
    done = agent("optimize", task, "--device", "cpu", "--out", out, "--timing-budget", "1")
    assert (
        done.returncode in (0, 15) and "answer is a constant" in done.stderr and "answer is a constant" in done.stdout
    )
    found = Trajectory.read(out)
    assert found.evaluation is not None and found.evaluation.signal is Signal.NONE
    assert found.reward is not None and found.reward.value == -1


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare to mount a small disk")
def test_no_space_left(tmp_path: Path) -> None:
    task, disk = write_task(tmp_path / "tasks"), tmp_path / "disk"
    disk.mkdir()
    mount = ["unshare", "-Urm", "sh", "-c"]
    if subprocess.run([*mount, f"mount -t tmpfs none {disk}"], capture_output=True, check=False).returncode != 0:
        pytest.skip("can't mount here")
    script = f'mount -t tmpfs -o size=40k none {disk} && exec "$0" "$@"'
    command = [*mount, script, *COMMAND, "optimize", str(task), "--device", "cpu", "--out", str(disk / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 6, done.stderr
    (line,) = error_lines(done.stderr)
    assert "No space left on device. Free some space" in line
    assert "Traceback" not in done.stderr


def test_a_sandbox_that_cannot_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_AGENT_BWRAP", "/nonexistent/bwrap")
    task, out = write_task(tmp_path / "tasks"), tmp_path / "run"
    done = agent("optimize", task, "--device", "cpu", "--out", out, "--sandbox", "full")
    assert done.returncode == 5, done.stderr
    (line,) = error_lines(done.stderr)
    assert "bubblewrap" in line
