from __future__ import annotations

from pathlib import Path

import pytest

from cuda_agent.agent.best import Best, BestRecord
from cuda_agent.agent.rundir import RunDirectory
from cuda_agent.core.config import JudgeOptions, OptimizeOptions
from cuda_agent.core.enums import Device, Verdict
from cuda_agent.core.errors import UsageError
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
