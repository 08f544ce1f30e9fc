"""Renders the judge's reports for a policy: a few lines of text each, and the same as data."""

from functools import partial
from pathlib import Path
from typing import Any

from cuda_agent.agent.tools.output import tail
from cuda_agent.core.assets import filled
from cuda_agent.core.records import BuildReport, Evaluation, ScreenReport

_TEXTS = Path(__file__).with_name("texts")
#: the end of a log that is shown.
_TAIL = partial(tail, characters=6000)


def say_build(report: BuildReport) -> str:
    """Returns one line for a success, else the end of the compiler's log."""
    return _said("build", build=report)


def say_evaluation(evaluation: Evaluation) -> str:
    """Returns the verdict, then the findings of the last phase: failed trials with their reasons and the worst error,
    times with their 95 % intervals and the candidate's speed-ups."""
    rules = dict.fromkeys(f"- rule {v.rule} ({v.layer}): {v.detail}" for v in evaluation.violations)
    trials = evaluation.verify.trials if evaluation.verify is not None else ()
    known = [trial for trial in trials if trial.candidate_error is not None]
    worst = max(known, key=lambda trial: trial.candidate_error or 0.0, default=None)
    return _said("evaluation", evaluation=evaluation, build=evaluation.build, rules=rules, worst=worst)


def say_screen(report: ScreenReport) -> str:
    """Returns one line per setting, the fastest first, then one per reason of failures."""
    timed = sorted((time, index) for index, time in enumerate(report.latency_us) if time is not None)
    first = report.configs[0]
    differing = ["the first", *({k: v for k, v in one.items() if first.get(k) != v} for one in report.configs[1:])]
    failed: dict[str, list[Any]] = {}
    for index, why in sorted(report.failures.items()):
        failed.setdefault(why, []).append(differing[index])
    return _said("screen", screen=report, timed=timed, differing=differing, failed=list(failed.items()))


def _said(name: str, **values: Any) -> str:
    return filled(_TEXTS / f"{name}.txt.j2", tail=_TAIL, **values).removesuffix("\n")


def evaluation_data(evaluation: Evaluation) -> dict[str, Any]:
    """Returns an evaluation for programs, without the judge's seeds."""
    data: dict[str, Any] = {"verdict": evaluation.verdict.value, "phase": evaluation.phase.value}
    data["digest"] = evaluation.candidate_digest
    if evaluation.reason:
        data["reason"] = evaluation.reason
    if evaluation.verify is not None:
        data["verified"] = evaluation.verify.passed and not evaluation.violations
        data["worst_error"] = evaluation.verify.worst_error
    if evaluation.profile is not None:
        data["latency_us"] = evaluation.profile.candidate.latency_us
        data["ratios"] = {name: [r.value, r.low, r.high] for name, r in evaluation.profile.ratios.items()}
        data["matched"] = evaluation.profile.matched
    return data
