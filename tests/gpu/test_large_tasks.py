"""Tasks of 4 to 8 GiB are judged on a card of 80 GB, all beside each other and without a second attempt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cuda_agent.bench.options import BenchOptions
from cuda_agent.bench.run import begin
from cuda_agent.bench.suite import problem_of
from cuda_agent.core.config import JudgeOptions, OptimizeOptions
from cuda_agent.core.enums import Device, OracleWay, Verdict
from cuda_agent.core.records import Task

pytestmark = [pytest.mark.gpu, pytest.mark.alone]
TASKS = sorted((Path(__file__).parents[1] / "data" / "large").glob("*.py"))


def test_large_tasks_beside_each_other(tmp_path: Path) -> None:
    problems = [problem_of(Task(name=path.stem, source=path.read_text())) for path in TASKS]
    options = BenchOptions(run=OptimizeOptions(judge=JudgeOptions(device=Device.CUDA, timing_budget_s=3.0)))
    bench = begin(["large"], problems, options, tmp_path / "bench")
    bench.jobs = len(problems)
    bench.play()
    results = {result.task.id: result for result in bench.directory.results()}
    verdicts = {name: found.evaluation.verdict for name, found in results.items() if found.evaluation is not None}
    assert verdicts == {path.stem: Verdict.PASSED for path in TASKS}, {n: r.message for n, r in results.items()}
    reports = [found.evaluation.verify for found in results.values() if found.evaluation is not None]
    ways = {report.oracle_way for report in reports if report is not None}
    assert ways == {OracleWay.SLICES}
    turns = [json.loads(line) for line in (tmp_path / "bench" / "turns.jsonl").read_text().splitlines()]
    assert not [turn for turn in turns if turn["step"].startswith("stay alone")]
