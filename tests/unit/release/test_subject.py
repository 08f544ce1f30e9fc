"""What is promoted: a run's best candidate or a workspace's, and what earlier ones of the run failed on."""

from __future__ import annotations

from pathlib import Path

import pytest

import builders
from cuda_agent.agent.best import BestRecord
from cuda_agent.agent.storage.rundir import RunDirectory
from cuda_agent.core.config import JudgeOptions, OptimizeOptions, Regression
from cuda_agent.core.enums import Device, Phase, Verdict
from cuda_agent.core.errors import UsageError
from cuda_agent.core.records import Budget, Evaluation, Task, Trajectory
from cuda_agent.release.subject import load_subject, rival
from cuda_agent.workspace import layout

TASK = Task(name="t", source="x = 1\n")
OPTIONS = OptimizeOptions(judge=JudgeOptions(device=Device.CPU))


def failed(seed: int) -> Evaluation:
    return builders.evaluation(
        verdict=Verdict.INCORRECT, phase=Phase.VERIFY, verify=builders.verify(False), profile=None,
        failing=Regression(seed=seed, weights_seed=1),
    )  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    made = RunDirectory.create(tmp_path / "run", "t")
    made.write_start(TASK, OPTIONS, ("cuda-agent",))
    return made


def test_a_run_that_was_killed_and_one_that_ended(run: RunDirectory) -> None:
    with pytest.raises(UsageError, match="no candidate"):
        load_subject(run.path)
    BestRecord(candidate=builders.CANDIDATE, evaluation=builders.evaluation()).write(run.path)
    killed = load_subject(run.path)
    assert killed.candidate == builders.CANDIDATE and killed.task == TASK and len(killed.evaluations) == 1
    Trajectory(
        task_key=TASK.key, task_name="t", policy="p", turns=(), budget=Budget(turns_limit=1), outcome="finished"
    ).write(run.path)
    with pytest.raises(UsageError, match="no candidate"):
        load_subject(run.path)


def test_a_run_whose_workspace_was_edited_since(run: RunDirectory) -> None:
    Trajectory(
        task_key=TASK.key, task_name="t", policy="p", turns=(), budget=Budget(turns_limit=1), outcome="finished",
        best=builders.CANDIDATE, evaluation=builders.evaluation(),
    ).write(run.path)  # fmt: skip
    layout.create(TASK, run.workspace, options=OPTIONS.judge).restore(builders.CANDIDATE)
    assert load_subject(run.path).candidate == builders.CANDIDATE
    with (run.workspace / "model_new.py").open("a") as stream:
        stream.write("# faster\n")
    with pytest.raises(UsageError, match="changed since the run ended"):
        load_subject(run.path)
    assert load_subject(run.workspace).candidate != builders.CANDIDATE


def test_what_earlier_candidates_failed_on(run: RunDirectory) -> None:
    BestRecord(candidate=builders.CANDIDATE, evaluation=builders.evaluation()).write(run.path)
    (run.path / "agent-1" / "logs").mkdir(parents=True)
    lines = [failed(1).model_dump_json(), "cut sho"]
    (run.logs / "failures.jsonl").write_text("\n".join(lines))
    (run.path / "agent-1" / "logs" / "failures.jsonl").write_text(failed(2).model_dump_json() + "\n")
    seeds = [one.failing.seed for one in load_subject(run.path).evaluations if one.failing is not None]
    assert seeds == [1, 2]


def test_a_workspace_and_a_kernel_for_another_task(tmp_path: Path, run: RunDirectory) -> None:
    BestRecord(candidate=builders.CANDIDATE, evaluation=builders.evaluation()).write(run.path)
    subject = load_subject(run.path)
    opened = layout.create(TASK, tmp_path / "same", options=OPTIONS.judge)
    with pytest.raises(UsageError, match=r"no model_new\.py"):
        load_subject(opened.directory)
    opened.restore(builders.CANDIDATE)
    assert rival("mine", opened.directory, subject) == builders.CANDIDATE
    other = layout.create(Task(name="u", source="y = 2\n"), tmp_path / "other", options=OPTIONS.judge)
    other.restore(builders.CANDIDATE)
    with pytest.raises(UsageError, match="for another task"):
        rival("mine", other.directory, subject)


def test_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        load_subject(tmp_path)
    (tmp_path / "bench.json").write_text("{}")
    with pytest.raises(UsageError, match="Choose one of them"):
        load_subject(tmp_path)
