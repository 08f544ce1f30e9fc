"""Valid records for tests, with single fields replaced by keyword."""

from __future__ import annotations

from typing import Any

from cuda_agent.core.enums import Device, Phase, Precision, SandboxLevel, Verdict
from cuda_agent.core.records import (
    BuildReport,
    Candidate,
    Evaluation,
    ProfileReport,
    Ratio,
    Timing,
    TrialReport,
    VerifyReport,
)
from cuda_agent.core.stack import Stack

CANDIDATE = Candidate(files={"model_new.py": "class ModelNew: ...\n", "kernels/a.cu": "// a\n"})


def stack(**changes: Any) -> Stack:
    return Stack(**{"python": "3.11.7", "cpu": "a CPU", "cpu_cores": 2, "cuda_agent": "0.1.0", **changes})


def timing(latency_us: float = 100.0, **changes: Any) -> Timing:
    known = {"low_us": 0.99 * latency_us, "high_us": 1.01 * latency_us, "event_us": latency_us, "repetitions": 10}
    return Timing(latency_us=latency_us, **{**known, **changes})


def ratio(baseline: str, low: float, value: float | None = None) -> Ratio:
    value = value or 1.01 * low
    return Ratio(baseline=baseline, low=low, value=value, high=1.01 * value)


def profile(ratios: dict[str, float], *, matched: str = "compile", **changes: Any) -> ProfileReport:
    """`ratios` maps a baseline's name to the lower end of its ratio."""
    names = {*ratios, matched}
    known = {
        "candidate": timing(),
        "baselines": {name: timing(200.0) for name in names},
        "ratios": {name: ratio(name, low) for name, low in ratios.items()},
        "matched": matched,
        "rounds": 10,
        "checked_outputs": 10,
    }
    return ProfileReport(**{**known, **changes})


def build(**changes: Any) -> BuildReport:
    known = {"succeeded": True, "candidate_digest": CANDIDATE.digest, "library_digest": "f00d", "duration_s": 1.0}
    return BuildReport(**{**known, **changes})


def verify(*passed: bool) -> VerifyReport:
    passed = passed or (True,)
    trials = tuple(TrialReport(kind="fresh", passed=one, candidate_error=1e-7) for one in passed)
    return VerifyReport(passed=all(passed), trials=trials)


def evaluation(**changes: Any) -> Evaluation:
    known = {
        "task_key": "0" * 64,
        "candidate_digest": CANDIDATE.digest,
        "device": Device.CPU,
        "precision": Precision.TF32,
        "verdict": Verdict.PASSED,
        "phase": Phase.PROFILE,
        "build": build(),
        "verify": verify(),
        "profile": profile({"eager": 2.0, "compile": 2.0}),
        "sandbox": SandboxLevel.FULL,
        "stack": stack(),
    }
    return Evaluation(**{**known, **changes})
