"""A run that spent its turns is resumed with more, shown, and its candidates are judged again; and an end that can't be
written is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cuda_agent import optimize, resume
from cuda_agent.agent.run import RunStatus
from cuda_agent.cli.main import run
from cuda_agent.cli.optimize import answer_of, played
from cuda_agent.core.errors import StoreError, UsageError
from cuda_agent.core.records import RunManifest, Trajectory
from integration.scripted_runs import FILES, Scripted, call, move, write_task, writes

pytestmark = pytest.mark.integration
QUICK = {"device": "cpu", "timing_budget_s": 0.6}


@pytest.mark.alone
def test_spent_resumed_shown_and_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    policy = Scripted([writes(FILES), move(call("Profile", precise=True)), move(call("Finish", message="done"))])
    standings: list[RunStatus] = []
    first = optimize(write_task(tmp_path), out=out, policy=policy, turns=2, watch=standings.append, **QUICK)
    assert (first.outcome, first.message) == ("budget", "all 2 turns are spent")
    assert first.budget.judge_s > 0
    assert standings[-1].best_us is not None and standings[-1].times_us == (standings[-1].best_us,)

    (tmp_path / "run" / "workspace" / "model_new.py").write_text("somebody's hand\n")
    told: list[tuple[str, str]] = []
    again = resume(out, policy=policy, limits={"turns": 5}, progress=lambda phase, text: told.append((phase, text)))
    assert again.outcome == "finished"
    assert again.turns[:2] == first.turns and len(again.turns) == 3
    assert again.best == first.best and again.evaluation == first.evaluation, "not judged a second time"
    assert again.budget.wall_s > first.budget.wall_s
    assert ("resume", "limits.turns: 5, was 2") in told
    assert RunManifest.read(out).resumed[0].turns == 2
    with pytest.raises(UsageError, match="has ended: finished, 3 turns"):
        resume(out, policy=policy)
    assert run(["resume", str(out)]) == 2
    assert "has ended" in capsys.readouterr().err

    assert run(["show", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "turn 3" in shown and "+++ kernels/gated.cpp" in shown and "gated: finished" in shown
    assert run(["show", str(out), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["turns"]) == 3

    assert run(["replay", str(out), "--timing-budget", "0.6", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["candidates"]
    assert first.best is not None and row["digest"] == first.best.digest
    assert row["recorded_verdict"] == row["evaluation"]["verdict"] == "passed"
    assert row["recorded_us"] == standings[-1].best_us


def test_an_end_that_cannot_be_written_is_told_with_the_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"

    def obstruct() -> object:
        (out / "evaluation.json").mkdir()
        (out / "evaluation.json" / "file").touch()
        return move(call("Finish", message="done"))

    policy = Scripted([writes({**FILES, "kernels/gated.cpp": "no C++"}), obstruct])
    result, code = played(lambda: optimize(write_task(tmp_path), out=out, policy=policy, **QUICK))
    answer_of(result, code).print(as_json=False)
    printed = capsys.readouterr()
    assert code == StoreError.exit_code
    assert "build failed" in printed.out
    assert "error: Can't write" in printed.err and "evaluation.json" in printed.err
    assert Trajectory.read(out).outcome == "finished", "what could be written was"
    assert not (out / ".reserve").exists()


def test_what_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("resume", "show", "replay"):
        assert run([verb, str(tmp_path / "none")]) == 2
        assert run([verb, str(tmp_path)]) == 2
        assert "run directory" in capsys.readouterr().err
    assert run(["replay", str(tmp_path), "--timing-budget", "-1"]) == 2


@pytest.mark.alone
def test_the_playbooks_candidate_can_be_the_start(tmp_path: Path) -> None:
    out = tmp_path / "run"
    policy = Scripted([move(call("Read", path="model_new.py")), move(call("Finish", message="nothing better"))])
    result = optimize(write_task(tmp_path), out=out, policy=policy, seed_with="playbook", **QUICK)
    seed = Trajectory.read(out / "seed")
    assert (seed.policy, seed.outcome, result.outcome) == ("playbook", "finished", "finished")
    assert result.turns[0].results[0].ok and "cuda_extension" in result.turns[0].results[0].text
    assert result.best == seed.best and result.evaluation == seed.evaluation
    assert result.turns[0].candidate_digest is not None
