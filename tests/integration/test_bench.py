"""A benchmark of three tiny tasks, killed on its way and gone on with."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cuda_agent.bench.directory import RESULTS_FILE, read_results
from cuda_agent.bench.metrics import verdict_of
from cuda_agent.core.errors import StoreError
from cuda_agent.core.records import RunManifest, Trajectory
from integration.benched import TASKS, open_bench

pytestmark = pytest.mark.integration
HERE = Path(__file__).parent


def wait_until(condition: object, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 300
    while not condition():  # type: ignore[operator]
        assert process.poll() is None and time.monotonic() < end, process.communicate()[1].decode()
        time.sleep(0.02)


def test_killed_and_gone_on_with(tmp_path: Path) -> None:
    out = tmp_path / "bench"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE)])}
    command = [sys.executable, str(HERE / "benched.py"), str(out), "begin"]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, start_new_session=True)
    gated, results = out / "tasks" / "gated", out / RESULTS_FILE
    try:
        wait_until(lambda: (gated / "checkpoint.json").exists() and results.exists(), process)
        with pytest.raises(StoreError, match=f"in use by process {process.pid}"):
            open_bench(out, "resume")
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    before = read_results(out)
    assert 1 <= len(before) < len(TASKS)

    bench = open_bench(out, "resume")
    metrics = bench.play()

    found = {result.task.id: result for result in read_results(out)}
    assert {name: verdict_of(result) for name, result in found.items()} == {
        "broken": "error",
        "stochastic": "error",
        "gated": "passed",
    }
    assert [found[result.task.id] for result in before] == before, "what was known stays"
    assert "stochastic in eval mode" in found["stochastic"].message
    run = Trajectory.read(gated)
    assert found["gated"].evaluation == run.evaluation and found["gated"].turns == len(run.turns) == 4
    assert RunManifest.read(gated).resumed, "a task that was at work was gone on with"
    assert found["gated"].task.work is not None and found["gated"].task.roofline is not None
    assert run.evaluation is not None and run.evaluation.profile is not None
    assert run.evaluation.profile.compiled["compile"].graphs == 1
    assert (metrics.tasks, metrics.done, metrics.groups[0].passed.value) == (3, 3, pytest.approx(1 / 3))
    assert open_bench(out, "resume").play() == metrics, "there is nothing left to do"
