"""A benchmark run on disk, made of records: results by what ours is over each baseline, or how it failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import builders
from cuda_agent.bench.directory import BenchDirectory
from cuda_agent.bench.options import BenchOptions
from cuda_agent.bench.suite import Problem, problem_of
from cuda_agent.core.bench import BenchResult, SuiteTask
from cuda_agent.core.config import JudgeOptions, OptimizeOptions
from cuda_agent.core.enums import Device, Verdict
from cuda_agent.core.records import Evaluation, Ratio, Task
from cuda_agent.reward import reward


def problem(name: str, level: str | None = None) -> Problem:
    return problem_of(Task(name=name, source=f"# {name}\n"), level=level)


def passed(ours_us: float = 100.0, **ratios: tuple[float, float]) -> Evaluation:
    """`ratios`: baseline -> (value, lower end)."""
    known = {
        name: Ratio(baseline=name, value=value, low=low, high=value + (value - low))
        for name, (value, low) in ratios.items()
    }
    profile = builders.profile(dict.fromkeys(ratios, 1.0), candidate=builders.timing(ours_us))
    profile = profile.model_copy(update={"ratios": known})
    return builders.evaluation(profile=profile)


def failed(verdict: Verdict = Verdict.INCORRECT) -> Evaluation:
    return builders.evaluation(verdict=verdict, profile=None)


def result(entry: SuiteTask, evaluation: Evaluation | None = None, **fields: Any) -> BenchResult:
    known: dict[str, Any] = {"outcome": "finished", "evaluation": evaluation}
    if evaluation is not None:
        known["reward"] = reward(evaluation)
    return BenchResult(task=entry, **{**known, **fields})


def written(folder: Path, evaluations: dict[str, Evaluation | None], **changes: Any) -> Path:
    """A run that is over; tasks without an evaluation weren't covered."""
    options = BenchOptions(run=OptimizeOptions(judge=JudgeOptions(device=Device.CPU)))
    directory = BenchDirectory(folder)
    directory.prepare()
    problems = [problem(name) for name in evaluations]
    manifest = directory.write_start("a suite", problems, options, "playbook", ("cuda-agent", "bench"))
    if changes:
        manifest.model_copy(update=changes).write(folder)
    for one, evaluation in zip(problems, evaluations.values(), strict=True):
        outcome = "finished" if evaluation is not None else "not_covered"
        directory.append(result(one.entry, evaluation, outcome=outcome))
    return folder
