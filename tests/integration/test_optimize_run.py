"""optimize() with a scripted policy: the real judge, compilers and processes on the cpu device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cuda_agent import optimize
from cuda_agent.agent.storage.transcript import read_transcript
from cuda_agent.core.enums import Verdict
from cuda_agent.core.errors import TaskError
from cuda_agent.core.records import Evaluation, RunManifest, Trajectory
from cuda_agent.workspace import layout
from integration.scripted_runs import FILES, MODEL_NEW, Scripted, call, move, write_task, writes

pytestmark = pytest.mark.integration
QUICK = {"device": "cpu", "timing_budget_s": 0.6}


@pytest.mark.alone
def test_a_whole_run(tmp_path: Path) -> None:
    out = tmp_path / "run"
    wrong = MODEL_NEW.replace("self.scale = scale", "self.scale = scale + 1")
    policy = Scripted([
        move(call("Read", path="model.py")),
        writes(FILES),
        move(call("Compile")),
        move(call("Verify")),
        move(call("Profile", configs=[{"config": 0}, {"config": 1}])),
        move(call("Profile")),
        move(call("Write", path="model_new.py", content=wrong), call("Profile")),
        move(call("Finish", message="done")),
    ])  # fmt: skip
    run = optimize(write_task(tmp_path), out=out, policy=policy, **QUICK)

    results = [[result.ok for result in turn.results] for turn in run.turns]
    texts = [result.text for turn in run.turns for result in turn.results]
    assert results == [[True], [True] * 3, [True], [True], [True], [True], [True, False], [True]], texts
    assert run.outcome == "finished"
    assert run.best is not None and run.best.files == FILES, "the wrong one didn't replace the right one"
    assert run.evaluation is not None and run.evaluation.verdict is Verdict.PASSED
    assert run.reward is not None and run.reward.value >= 1

    assert Trajectory.read(out) == run
    assert Evaluation.read(out) == run.evaluation
    assert read_transcript(out) == run.turns
    assert RunManifest.read(out).digests["candidate"] == run.best.digest
    assert json.loads((out / "config.json").read_text())["judge"]["device"] == "cpu"
    assert layout.open_workspace(out / "workspace").snapshot() == run.best, "the best stands in the workspace again"


def test_the_workspaces_commands_reach_the_same_judge(tmp_path: Path) -> None:
    policy = Scripted([
        writes(FILES),
        move(call("Bash", command="bash utils/compile.sh && ls cuda_extension.so")),
        move(call("Bash", command="python3 -m utils.verification")),
        move(call("Finish", message="done")),
    ])  # fmt: skip
    run = optimize(write_task(tmp_path), out=tmp_path / "run", policy=policy, **QUICK)
    compiled, verified = run.turns[1].results[0], run.turns[2].results[0]
    assert compiled.ok and "cuda_extension.so" in compiled.text, compiled.text
    assert verified.ok and "Verified" in verified.text, verified.text
    # Its verdict is a matter of times too, which others disturb here.
    assert run.evaluation is not None and run.evaluation.verify is not None and run.evaluation.verify.passed


@pytest.mark.alone
def test_an_interrupt_leaves_a_whole_run(tmp_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    out = tmp_path / "run"
    policy = Scripted([writes(FILES), move(call("Profile")), interrupt])
    run = optimize(write_task(tmp_path), out=out, policy=policy, **QUICK)
    assert run.outcome == "interrupted"
    assert run.evaluation is not None and run.evaluation.verdict is Verdict.PASSED
    assert Trajectory.read(out).outcome == "interrupted"
    assert len(read_transcript(out)) == 2


def test_what_was_never_profiled_is_judged_at_the_end(tmp_path: Path) -> None:
    policy = Scripted([writes({**FILES, "kernels/gated.cpp": "this is no C++"}), move(call("Finish", message="hm"))])
    run = optimize(write_task(tmp_path), out=tmp_path / "run", policy=policy, **QUICK)
    assert run.evaluation is not None and run.evaluation.verdict is Verdict.BUILD_FAILED
    assert run.reward is not None and run.reward.value == -1


def test_a_task_that_fails_leaves_a_run_that_says_so(tmp_path: Path) -> None:
    source = "raise RuntimeError('no')\nclass Model: ...\ndef get_inputs(): ...\ndef get_init_inputs(): ...\n"
    with pytest.raises(TaskError):
        optimize(write_task(tmp_path, source), out=tmp_path / "run", policy=Scripted([]), **QUICK)
    trajectory = Trajectory.read(tmp_path / "run")
    assert trajectory.outcome == "error"
    assert "no" in trajectory.message
