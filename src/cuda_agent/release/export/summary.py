"""Writes an evaluation as the table of a README."""

from __future__ import annotations

from cuda_agent.core.records import Evaluation, Ratio, Timing
from cuda_agent.core.stack import Stack


def evidence(evaluation: Evaluation) -> str:
    """Returns times with their intervals, errors and the stack as Markdown, for an evaluation that passed."""
    profile, verify = evaluation.profile, evaluation.verify
    assert profile is not None and verify is not None
    rows = ["| | µs | 95 % interval | these kernels are faster by | 95 % interval |", "|---|---|---|---|---|"]
    for name, timing in profile.baselines.items():
        rows.append(_row(name + (" (matched)" if name == profile.matched else ""), timing, profile.ratios.get(name)))
    rows.append(_row("**these kernels**", profile.candidate))
    errors = [trial for trial in verify.trials if trial.candidate_error is not None]
    lines = [*rows, ""]
    if slower_than_eager(evaluation):
        lines.append("**These kernels are slower than eager: the original is the better choice.**")
    if errors:
        worst = max(errors, key=lambda trial: trial.candidate_error or 0.0)
        budget = f", allowed {worst.budget:.2e}" if worst.budget is not None else ""
        lines.append(
            f"Relative L2 error against the {verify.oracle} oracle, the worst of {len(verify.trials)} trials: "
            f"{worst.candidate_error:.2e}{budget}."
        )
    lines += [f"Measured on {stack_line(evaluation.stack)}.", f"Precision policy {evaluation.precision.value}."]
    lines += [f"Note: {note}." for note in (*profile.notes, *evaluation.notes)]
    return "\n".join(lines)


def slower_than_eager(evaluation: Evaluation) -> bool:
    """Whether the candidate is slower than eager, so that the original is the better choice."""
    ratio = evaluation.profile.ratios.get("eager") if evaluation.profile is not None else None
    return ratio is not None and ratio.value < 1.0


def stack_line(stack: Stack) -> str:
    """Returns hardware and software on one line."""
    gpu = f"{stack.gpus[0].name}, driver {stack.driver}, CUDA {stack.cuda_compiler}" if stack.gpus else None
    parts = [gpu or f"{stack.cpu}, {stack.cpu_cores} cores", f"torch {stack.torch}", f"Python {stack.python}"]
    return ", ".join(parts)


def _row(name: str, timing: Timing, ratio: Ratio | None = None) -> str:
    faster = "| |" if ratio is None else f"{ratio.value:.3f}× | {ratio.low:.3f} – {ratio.high:.3f} |"
    return f"| {name} | {timing.latency_us:,.1f} | {timing.low_us:,.1f} – {timing.high_us:,.1f} | {faster}"
