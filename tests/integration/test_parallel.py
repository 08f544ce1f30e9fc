"""Two agents on one task, which share the judge's pool; and what a kill of both leaves."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from cuda_agent import optimize, resume
from cuda_agent.agent.policy import Brief
from cuda_agent.agent.storage.transcript import read_transcript
from cuda_agent.core.enums import Verdict
from cuda_agent.core.records import Trajectory
from cuda_agent.workspace import layout
from integration.scripted_runs import FILES, KERNEL, Scripted, call, move, write_task, writes

pytestmark = pytest.mark.integration


class Each:
    """The first agent that asks for its policy gets the first script, and so on."""

    name = "each"

    def __init__(self, *scripts: list[object]) -> None:
        self._scripts = list(scripts)
        self._lock = threading.Lock()

    def __call__(self, brief: Brief) -> Scripted:
        with self._lock:
            return Scripted(self._scripts.pop(0))  # type: ignore[arg-type]


@pytest.mark.alone
def test_two_agents_share_the_device(tmp_path: Path) -> None:
    out = tmp_path / "run"
    slow = {**FILES, "kernels/gated.cpp": KERNEL.replace("#pragma omp parallel for simd schedule(static)", "")}
    scripts = [
        [writes(files), move(call("Compile")), move(call("Profile")), move(call("Finish", message="done"))]
        for files in (FILES, slow)
    ]
    run = optimize(write_task(tmp_path), out=out, policy=Each(*scripts), device="cpu", timing_budget_s=0.6, parallel=2)
    assert run.outcome == "finished"
    assert run.evaluation is not None and run.evaluation.verdict is Verdict.PASSED
    each = [Trajectory.read(out / f"agent-{number}") for number in (1, 2)]
    assert [agent.outcome for agent in each] == ["finished"] * 2
    assert run.budget.turns_spent == 8
    assert Trajectory.read(out) == run
    assert run.best is not None
    assert layout.open_workspace(out / "workspace").snapshot() == run.best
    assert run.best in [agent.best for agent in each]


def test_agents_are_resumed_where_each_stopped(tmp_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    out = tmp_path / "run"
    read, finish = move(call("Read", path="model.py")), move(call("Finish", message="done", outcome="gave_up"))
    first = Each([read, interrupt], [read, read, finish])
    run = optimize(write_task(tmp_path), out=out, policy=first, device="cpu", parallel=2)
    outcomes = sorted(Trajectory.read(out / f"agent-{number}").outcome for number in (1, 2))
    assert outcomes == ["gave_up", "interrupted"]
    assert run.best is None

    again = resume(out, policy=Each([read, read, finish]))
    assert again.outcome == "gave_up"
    assert {len(read_transcript(out / f"agent-{number}")) for number in (1, 2)} == {3}
