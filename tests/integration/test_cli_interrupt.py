"""Ctrl-C in the middle: exit code 130, a whole run directory, no process left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cuda_agent.agent.storage.transcript import read_transcript
from cuda_agent.core.records import RunManifest, Trajectory
from cuda_agent.workspace import layout
from cuda_agent.workspace.descendants import descendants
from integration.scripted_runs import write_task

pytestmark = pytest.mark.integration


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.parametrize(
    ("phase", "number"), [("task", signal.SIGINT), ("Read", signal.SIGINT), ("Write", signal.SIGTERM)]
)
def test_an_interrupt(phase: str, number: signal.Signals, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [sys.executable, "-c", "from cuda_agent.cli.main import main; main()", "optimize"]
    command += [str(write_task(tmp_path / "tasks")), "--device", "cpu", "--out", str(out)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stderr is not None
    timer = threading.Timer(240, process.kill)
    timer.start()
    seen = ""
    for line in process.stderr:
        seen += line
        if f" {phase} " in line:
            break
    time.sleep(0.3)
    below = descendants(process.pid)
    assert below, seen
    os.kill(process.pid, number)
    _, rest = process.communicate(timeout=60)
    timer.cancel()
    assert process.returncode == 130, seen + rest
    assert "Traceback" not in rest
    deadline = time.monotonic() + 10
    while any(map(alive, below)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(alive, below))
    trajectory = Trajectory.read(out)
    assert trajectory.outcome == "interrupted"
    assert trajectory.turns == (read_transcript(out) if trajectory.turns else ())
    RunManifest.read(out)
    layout.open_workspace(out / "workspace")
