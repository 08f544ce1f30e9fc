"""`cuda-agent optimize` with the playbook, on the cpu device."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cuda_agent.agent.storage.transcript import read_transcript
from cuda_agent.cli.main import run
from cuda_agent.core.errors import KeepOriginal
from cuda_agent.core.records import Evaluation, Trajectory
from integration.scripted_runs import SOURCE, write_task

pytestmark = pytest.mark.integration
QUICK = ["--device", "cpu", "--timing-budget", "0.6"]
NOT_COVERED = SOURCE.replace("torch.sigmoid(y)", "torch.linalg.matrix_exp(y * 1e-3)")


@pytest.mark.alone
def test_one_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    code = run(["optimize", str(write_task(tmp_path)), "--out", str(out), *QUICK])
    shown = capsys.readouterr()
    # In so short a time the kernel may not show that it is faster than the compiled form.
    assert code == (KeepOriginal.exit_code if "keep the original: " in shown.out else 0)
    for words in ("eager", "torch.compile (float32)", "matched", "ours", "verdict  passed", "reward", str(out)):
        assert words in shown.out
    assert "Compile" in shown.err and "Profile" in shown.err
    names = [call.tool for turn in read_transcript(out) for call in turn.calls]
    assert names[0] == "Read"
    assert names[-1] == "Finish"
    assert names.index("Write") < names.index("Compile") < names.index("Profile")
    assert Evaluation.read(out) == Trajectory.read(out).evaluation

    assert run(["judge", str(out), "--timing-budget", "0.6", "--json"]) == 0
    again = Evaluation.from_json(capsys.readouterr().out)
    assert again.candidate_digest == Evaluation.read(out).candidate_digest


def test_not_covered_is_an_honest_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert run(["optimize", str(write_task(tmp_path, NOT_COVERED)), "--out", str(out), "--json", *QUICK]) == 10
    trajectory = Trajectory.from_json(capsys.readouterr().out)
    assert trajectory.outcome == "not_covered"
    assert "matrix_exp" in trajectory.message
    assert trajectory.best is None and trajectory.evaluation is None
    assert not (out / "workspace" / "model_new.py").exists()


@pytest.mark.alone
def test_several_tasks_end_with_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tasks, out = tmp_path / "tasks", tmp_path / "out"
    write_task(tasks, SOURCE, "good")
    write_task(tasks, NOT_COVERED, "other")
    write_task(tasks, "x = 1\n", "broken")
    write_task(tasks, "x = 1\n", "_helper")
    assert run(["optimize", str(tasks), "--out", str(out), *QUICK]) == 3
    shown = capsys.readouterr().out
    assert re.search("3 tasks: 1 error, (1 kept, 1 not covered|1 not covered, 1 passed)", shown)
    assert "geometric means over the tasks that passed: vs eager" in shown
    assert "broken: error:" in shown
    assert {path.name for path in out.iterdir()} == {"good", "other"}

    (tasks / "broken.py").unlink()
    (tasks / "good.py").unlink()
    assert run(["optimize", str(tasks), "--out", str(tmp_path / "more"), "--json", *QUICK]) == 10
    document = json.loads(capsys.readouterr().out)
    assert document["summary"]["states"] == {"not covered": 1}
