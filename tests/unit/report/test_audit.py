"""What a person should look at, and their word."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from cuda_agent.core.bench import Audits
from cuda_agent.core.enums import Device
from cuda_agent.core.errors import UsageError
from cuda_agent.report.audit import last_audits, record, to_check
from cuda_agent.report.load import load
from report_runs import bench_directory, hostile_result


def test_large_and_strange_wins_come_first_then_a_sample(tmp_path: Path) -> None:
    run = load(bench_directory(tmp_path / "run"))
    found = to_check(run.rows, run.limits, run.audits)
    reasons = {item.row.task.id: "; ".join(item.reasons) for item in found}
    assert (
        re.search(r"\d{3}× over eager", reasons["projection_mean"]) and "fewer operations" in reasons["projection_mean"]
    )
    assert "faster than memory allows" in reasons["too_fast"]
    assert "of the measured bandwidth" in reasons["projection_mean"], "1 GB in 73 µs can't be"
    row = next(row for row in run.rows if row.task.id == "projection_mean")
    assert row.evaluation is not None and row.result is not None
    here = row.evaluation.model_copy(update={"device": Device.CPU})
    held = replace(row, result=row.result.model_copy(update={"evaluation": here}))
    assert "bandwidth" not in str(to_check([held], run.limits, run.audits)), "a CPU's caches"
    assert [item.suspicious for item in found] == sorted((item.suspicious for item in found), reverse=True)
    assert sum("random sample" in item.reasons for item in found) == 3
    assert [item.row.task.id for item in to_check(run.rows, run.limits, run.audits)] == [i.row.task.id for i in found]
    assert "wrong_answers" not in reasons and "waiting_0" not in reasons


def test_a_word_is_kept_and_the_last_one_counts(tmp_path: Path) -> None:
    path = bench_directory(tmp_path / "run")
    run = load(path)
    record(path, run.rows, run.audits, "moe_gate", "doubtful", "own share 2.8 %", "me")
    record(path, run.rows, Audits.read(path), "moe_gate", "sound", "", "you")
    audits = Audits.read(path)
    assert [audit.verdict for audit in audits.audits] == ["doubtful", "sound"]
    assert last_audits(audits)["moe_gate"].by == "you"
    checks = {item.row.task.id: item for item in to_check(run.rows, run.limits, audits)}
    assert checks["moe_gate"].audit is not None and checks["moe_gate"].audit.verdict == "sound"


def test_a_task_that_isnt_there_is_refused_with_the_nearest(tmp_path: Path) -> None:
    path = bench_directory(tmp_path / "run")
    run = load(path)
    with pytest.raises(UsageError, match="Did you mean swiglu"):
        record(path, run.rows, run.audits, "swigluu", "sound", "", "")
    assert not (path / "audit.json").exists()


def test_a_name_as_the_page_shows_it_is_understood(tmp_path: Path) -> None:
    path = bench_directory(tmp_path / "run")
    hostile = hostile_result(path)
    run = load(path)
    shown = hostile.task.id.replace("\u202e", "[U+202E]").replace("\u2066", "[U+2066]")
    assert record(path, run.rows, run.audits, shown, "cheating", "", "").task == hostile.task.id
