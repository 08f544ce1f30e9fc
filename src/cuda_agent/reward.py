"""Evaluation -> Reward, and whether the original should be kept. Pure.

Paper, "Reward", with b(t, t0) = [(t0 - t) / t0 > 5 %]:

    r = -1  if any correctness check fails
         3  if b(t, t_eager) and b(t, t_compile)
         2  if b(t, t_eager)
         1  otherwise

A milestone counts when the *lower end* of the measured interval passes it. (t0 - t)/t0 > 0.05 is the same as
t0/t > 1/0.95, so the test is `ratio.low > 1/0.95`. With `RewardBaseline.MATCHED`, t_compile is the fastest baseline at
the candidate's precision policy, whatever it is. A task whose answer is a constant is never paid.
"""

from cuda_agent.core.baselines import COMPILE, EAGER, MATCHED, Baseline
from cuda_agent.core.enums import Milestone, RewardBaseline, Signal
from cuda_agent.core.records import Evaluation, KernelReport, Ratio, Reward

MARGIN = 0.05


def is_faster(ratio: Ratio | None) -> bool:
    """b(t, t0), on the lower end of the interval; False where the baseline has no time."""
    return ratio is not None and ratio.low > 1.0 / (1.0 - MARGIN)


def closest_attempt(evaluation: Evaluation | None) -> Ratio | None:
    """Returns the ratio over the fastest form of the library at the same precision where a candidate passed and isn't
    faster beyond the interval: its user should keep the original. None where it is faster, or didn't pass."""
    profile = evaluation.passed_profile if evaluation is not None else None
    ratio = profile.ratio(MATCHED) if profile is not None else None
    return ratio if ratio is not None and ratio.low <= 1.0 else None


def keep_original(closest: Ratio, kernels: KernelReport | None = None) -> str:
    """Returns the advice to keep the original in one line, with the closest attempt and what takes its time."""
    said = f"keep the original: the closest attempt is {closest.value:.2f} times as fast as "
    said += f"{Baseline.parse(closest.baseline).label} [{closest.low:.2f}, {closest.high:.2f}]"
    if closest.value > 1.0:
        said += ", which isn't certain (a longer --timing-budget may tell)"
    return said if kernels is None else f"{said}; {kernels.own_share:.0%} of its time on the GPU are its own kernels"


def reward(evaluation: Evaluation, baseline: RewardBaseline = RewardBaseline.PUBLISHED) -> Reward:
    """The milestone reward of one evaluation."""
    if evaluation.signal is Signal.NONE:
        reason = "the task's answer is a constant, which pays nothing"
        return Reward(value=-1, milestone=Milestone.FAILED, baseline=baseline, reason=reason)
    profile = evaluation.passed_profile
    if profile is None:
        reason = evaluation.reason or str(evaluation.verdict)
        return Reward(value=-1, milestone=Milestone.FAILED, baseline=baseline, reason=reason)
    eager, strong = profile.ratio(EAGER), profile.ratio(MATCHED if baseline is RewardBaseline.MATCHED else COMPILE)
    said = ", ".join(f"{r.value:.3f}x over {r.baseline} (at least {r.low:.3f}x)" for r in (eager, strong) if r)
    if is_faster(eager) and is_faster(strong):
        return Reward(value=3, milestone=Milestone.FASTER_THAN_BOTH, baseline=baseline, reason=said)
    if is_faster(eager):
        return Reward(value=2, milestone=Milestone.FASTER_THAN_EAGER, baseline=baseline, reason=said)
    return Reward(value=1, milestone=Milestone.CORRECT, baseline=baseline, reason=said)
