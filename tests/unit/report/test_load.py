"""What lies in a folder, read as far as it came."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cuda_agent.core.bench import Audit, Audits, BenchManifest, Metrics
from cuda_agent.core.errors import StoreError, UsageError
from cuda_agent.core.records import Task
from cuda_agent.report.load import load
from report_runs import bench_directory, example_run


def test_a_benchmark(tmp_path: Path) -> None:
    run = load(bench_directory(tmp_path / "run", waiting=2))
    assert run.kind == "bench" and run.policy == "playbook" and run.limits is not None
    states = [row.state for row in run.rows]
    assert {state: states.count(state) for state in set(states)} == {
        "passed": 15, "failed": 3, "not covered": 1, "error": 1, "waiting": 2,
    }  # fmt: skip
    assert "2 of 22 tasks have no result yet" in run.notes[0]
    assert len(run.results) == 20
    by_id = {row.task.id: row for row in run.rows}
    assert by_id["wrong_answers"].verdict == "incorrect" and by_id["wrong_answers"].note == "relative error 3.2e-01"
    assert by_id["adaln_modulate"].directory is None, "its folder is gone"
    assert by_id["swiglu"].directory is not None
    swiglu, profile = by_id["swiglu"].ratio("matched"), by_id["swiglu"].profile
    assert swiglu is not None and profile is not None and swiglu.baseline == profile.matched


def test_evidence_of_a_promotion_has_its_own_page(tmp_path: Path) -> None:
    (tmp_path / "promotion.json").write_text("{}")
    with pytest.raises(UsageError, match="evidence of a promotion") as caught:
        load(tmp_path)
    assert "report.html" in str(caught.value)


def test_a_line_that_a_kill_cut_short_is_left_out(tmp_path: Path) -> None:
    path = bench_directory(tmp_path / "run", waiting=0)
    with (path / "results.jsonl").open("a") as stream:
        stream.write('{"schema_version":1,"task":{"id":"x')
    run = load(path)
    assert len(run.results) == 20 and "cut short" in run.notes[0]


def test_the_last_of_two_results_counts_and_strays_are_shown(tmp_path: Path) -> None:
    path = bench_directory(tmp_path / "run", waiting=0)
    lines = (path / "results.jsonl").read_text().splitlines()
    again = json.loads(lines[0]) | {"turns": 99}
    again["task"]["work"] = None
    stray = json.loads(lines[1])
    stray["task"]["id"] = "stray"
    (path / "results.jsonl").write_text("\n".join([*lines, json.dumps(again), json.dumps(stray)]))
    run = load(path)
    assert run.rows[0].result is not None and run.rows[0].result.turns == 99
    assert run.rows[0].task.work is not None, "the suite says it"
    assert run.rows[-1].task.id == "stray"


def test_another_schema_version_is_refused_by_name(tmp_path: Path) -> None:
    path = bench_directory(tmp_path / "run")
    manifest = json.loads((path / "bench.json").read_text()) | {"schema_version": 7}
    (path / "bench.json").write_text(json.dumps(manifest))
    with pytest.raises(StoreError, match="schema version 7, this cuda-agent reads 1"):
        load(path)


def test_metrics_of_fewer_results_are_not_shown(tmp_path: Path) -> None:
    path = bench_directory(tmp_path / "run")
    Metrics(tasks=21, done=3, groups=()).write(path)
    assert load(path).metrics is None
    Metrics(tasks=21, done=20, groups=()).write(path)
    assert load(path).metrics is not None


def test_a_run_directory_outside_of_the_benchmark_is_not_read(tmp_path: Path) -> None:
    path = bench_directory(tmp_path / "run", waiting=0)
    example_run(tmp_path / "elsewhere", "swiglu")
    lines = (path / "results.jsonl").read_text().splitlines()
    first = json.loads(lines[1]) | {"directory": "../elsewhere"}
    (path / "results.jsonl").write_text("\n".join([lines[0], json.dumps(first), *lines[2:]]) + "\n")
    assert load(path).rows[1].directory is None


def test_references_come_from_the_suite_where_a_run_left_none(tmp_path: Path) -> None:
    path = bench_directory(tmp_path / "run")
    task = Task(name="waiting", source="class Model: ...\n")
    manifest = BenchManifest.read(path)
    tasks = (*manifest.tasks[:-1], manifest.tasks[-1].model_copy(update={"key": task.key}))
    manifest.model_copy(update={"tasks": tasks}).write(path)
    (path / "suite.jsonl").write_text(task.model_dump_json() + "\nhalf a li")
    assert load(path).rows[-1].source == "class Model: ...\n"


def test_a_run_of_optimize_and_a_folder_of_several(tmp_path: Path) -> None:
    one = load(example_run(tmp_path / "runs" / "swiglu", "swiglu"))
    assert one.kind == "optimize" and one.title == "swiglu" and one.rows[0].state == "passed"
    example_run(tmp_path / "runs" / "going_on", "moe_gate", ended=False)
    broken = example_run(tmp_path / "runs" / "broken", "gelu_mlp")
    (broken / "trajectory.json").write_text("{")
    several = load(tmp_path / "runs")
    assert several.kind == "runs" and [row.task.id for row in several.rows] == ["going_on", "swiglu"]
    assert several.rows[0].state == "unfinished"
    assert any("broken" in note for note in several.notes) and any("hasn't ended" in note for note in several.notes)


def test_a_training_run(tmp_path: Path) -> None:
    lines = [
        {"step": 2, "actor/entropy": 0.4},
        {"step": 1, "actor/entropy": 0.5, "critic": {"explained_variance": 0.1}},
    ]
    lines = [{"stage": "rft"} | line for line in lines] + [{"stage": "ppo", "step": 1, "reward": 2}]
    text = "\n".join(map(json.dumps, lines)) + '\n{"step": 3, "actor/ent\n[1]\n{"step": 4, "bad": NaN, "name": "x"}'
    (tmp_path / "metrics.jsonl").write_text(text)
    run = load(tmp_path)
    assert run.kind == "training"
    assert [(series.stage, series.name, series.points) for series in run.series] == [
        ("rft", "actor/entropy", ((1.0, 0.5), (2.0, 0.4))),
        ("rft", "critic/explained_variance", ((1.0, 0.1),)),
        ("ppo", "reward", ((1.0, 2.0),)),
    ]


def test_what_is_no_run_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, said in ((tmp_path, "holds no run"), (tmp_path / "file", "is a file"), (tmp_path / "no", "no folder")):
        with pytest.raises(UsageError, match=said):
            load(path)


def test_audits_are_read(tmp_path: Path) -> None:
    path = bench_directory(tmp_path / "run")
    Audits(audits=(Audit(task="swiglu", verdict="sound"),)).write(path)
    assert load(path).audits.audits[0].task == "swiglu"
    shutil.copy(path / "audit.json", path / "bench.json")
    with pytest.raises(StoreError, match="not a valid BenchManifest"):
        load(path)
