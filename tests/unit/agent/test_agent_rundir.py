from __future__ import annotations

import os
from pathlib import Path

import pytest

from cuda_agent.agent.best import Best, BestRecord
from cuda_agent.agent.storage.rundir import RunDirectory
from cuda_agent.core.config import JudgeOptions, Limits, OptimizeOptions
from cuda_agent.core.enums import Device, Verdict
from cuda_agent.core.errors import StoreError, UsageError
from cuda_agent.core.records import Candidate, Evaluation, RunManifest, Task


def test_the_default_place_is_new_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = RunDirectory.create(None, "t"), RunDirectory.create(None, "t")
    assert first.path != second.path
    assert first.path.parent == tmp_path / "runs"
    assert first.path.name.startswith("t-")
    with pytest.raises(UsageError, match="isn't empty"):
        RunDirectory.create(first.path, "t")


def test_what_is_written_before_anything_runs(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "run", "t")
    options = OptimizeOptions(judge=JudgeOptions(device=Device.CPU))
    directory.write_start(Task(name="t", source="x"), options, ("cuda-agent", "optimize", "t.py"))
    manifest = RunManifest.read(directory.path)
    assert manifest.command == ("cuda-agent", "optimize", "t.py")
    assert manifest.configuration["judge"]["device"] == "cpu"
    assert manifest.stack.python
    names = {path.name for path in directory.path.iterdir()}
    assert names == {"config.json", "logs", "manifest.json", "task.json", ".reserve"}


def test_best_is_correct_first_then_fast(tmp_path: Path) -> None:
    from unit.cli.test_report import CANDIDATE, evaluation

    def judged(verdict: Verdict, ours: float) -> tuple[Candidate, Evaluation]:
        return CANDIDATE, evaluation(verdict, ours)

    best = Best(tmp_path)
    assert best.offer(*judged(Verdict.INCORRECT, 1.0))
    assert not best.passed
    assert best.offer(*judged(Verdict.PASSED, 500.0))
    assert not best.offer(*judged(Verdict.INCORRECT, 1.0))
    assert not best.offer(*judged(Verdict.PASSED, 600.0))
    assert best.latency_us == 500.0
    assert best.offer(*judged(Verdict.PASSED, 400.0))
    assert best.passes == 3
    assert BestRecord.read(tmp_path).evaluation == best.evaluation


def test_one_process_holds_a_run(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "run", "t")
    with directory.lock(), pytest.raises(StoreError, match=f"in use by process {os.getpid()}"), directory.lock():
        pass
    with directory.lock():
        pass
    with pytest.raises(UsageError, match="No run directory"), RunDirectory(tmp_path / "none").lock():
        pass


def test_what_changed_since_a_run_was_begun_is_said_and_kept(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "run", "t")
    options = OptimizeOptions(judge=JudgeOptions(device=Device.CPU))
    directory.write_start(Task(name="t", source="x"), options, ("optimize",))
    manifest = RunManifest.read(directory.path)
    older = manifest.model_copy(update={"stack": manifest.stack.model_copy(update={"torch": "2.0"})})
    older.write(directory.path)
    _, read, before = directory.read_start()
    assert read == options
    changed = options.model_copy(update={"limits": Limits(turns=90)})
    _, changes = directory.write_resumption(before, changed)
    assert set(changes) == {"limits.turns: 90, was 60", f"stack.torch: {manifest.stack.torch}, was 2.0"}
    _, now, after = directory.read_start()
    assert now == changed
    assert after.resumed[0].changes == changes
    assert directory.write_resumption(after, changed)[1] == (), "said once"


def test_a_best_candidate_offered_by_a_killed_tool_is_forgotten(tmp_path: Path) -> None:
    from unit.cli.test_report import CANDIDATE, evaluation

    best = Best(tmp_path)
    for latency in (500.0, 400.0):
        best.offer(CANDIDATE, evaluation(Verdict.PASSED, latency))
    again = Best(tmp_path)
    again.recall(1, 1)
    assert (again.latency_us, again.passes) == (500.0, 1)
    again.recall(2, 2)
    assert again.latency_us == 400.0
    again.recall(0, 0)
    assert again.candidate is None
    with pytest.raises(StoreError, match="has lost its best candidate"):
        again.recall(7, 7)
