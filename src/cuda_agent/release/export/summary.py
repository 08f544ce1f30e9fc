"""Writes an evaluation as the table of a README."""

from __future__ import annotations

from pathlib import Path

from cuda_agent.core.records import Evaluation
from cuda_agent.core.templates import filled


def evidence(evaluation: Evaluation) -> str:
    """Returns times with their intervals, errors and the stack as Markdown, for an evaluation that passed."""
    assert evaluation.verify is not None
    known = [trial for trial in evaluation.verify.trials if trial.candidate_error is not None]
    return filled(
        Path(__file__).with_name("summary.md.j2"),
        evaluation=evaluation,
        profile=evaluation.profile,
        slower=slower_than_eager(evaluation),
        worst=max(known, key=lambda trial: trial.candidate_error or 0.0, default=None),
        stack=evaluation.stack,
    ).removesuffix("\n")


def slower_than_eager(evaluation: Evaluation) -> bool:
    """Whether the candidate is slower than eager, so that the original is the better choice."""
    ratio = evaluation.profile.ratios.get("eager") if evaluation.profile is not None else None
    return ratio is not None and ratio.value < 1.0
