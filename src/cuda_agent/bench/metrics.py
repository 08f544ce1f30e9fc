"""Computes the metrics of a benchmark's results. docs/metrics.md has the formulas and the use of each number.

All metrics are over *all* finished tasks of a group, failures included. Intervals are percentiles of a bootstrap over
tasks. They say how much a number depends on the choice of tasks, not how precisely each task was timed.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cuda_agent.core.baselines import BASELINES
from cuda_agent.core.bench import Against, BenchResult, Estimate, Metrics, MetricsGroup
from cuda_agent.core.enums import Signal, Verdict
from cuda_agent.core.records import ProfileReport, Ratio
from cuda_agent.reward import closest_attempt, is_faster

#: The thresholds p of fast_p, which is the share of all tasks that are more than p times as fast as the baseline.
THRESHOLDS = (0.5, 0.8, 1.0, 1.05, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0)
RESAMPLES = 2000
SEED = 0
_TAIL = 2.5

Numbers = NDArray[np.float64]
By = Literal["all", "level", "origin", "roofline", "signal"]


def metrics_of(results: Sequence[BenchResult], *, tasks: int | None = None) -> Metrics:
    """Returns the metrics of all results, and of those of each level, origin, roofline class and signal. `tasks` is the
    size of the whole suite, where not all tasks are done."""
    groups = [_group("all", "all", results)] if results else []
    kinds: tuple[tuple[By, Callable[[BenchResult], str | None]], ...] = (
        ("level", lambda result: result.task.level),
        ("origin", lambda result: result.task.origin),
        ("roofline", lambda result: result.task.roofline),
        ("signal", _signal),
    )
    for by, name_of in kinds:
        names = [name_of(result) for result in results]
        if len(set(names)) == 1 and (names[0] is None or by in ("origin", "signal")):
            continue
        for name in sorted({name or "unknown" for name in names}):
            groups.append(
                _group(by, name, [r for r, n in zip(results, names, strict=True) if (n or "unknown") == name])
            )
    return Metrics(tasks=len(results) if tasks is None else tasks, done=len(results), groups=tuple(groups))


def speedup(result: BenchResult, baseline: str) -> Ratio | None:
    """Returns the speed-up over `eager`, `compile` or `matched` (the fastest at the candidate's precision), or None
    without a passed profile or a time of that baseline."""
    profile = passed_profile(result)
    return None if profile is None else profile.ratio(baseline)


def _signal(result: BenchResult) -> str:
    """Returns the task's signal; `own` where it isn't known, since no candidate ran."""
    evaluation = result.evaluation
    return Signal.OWN.value if evaluation is None or evaluation.signal is None else evaluation.signal.value


def queued(result: BenchResult, baseline: str) -> float:
    """Returns the speed-up of calls in a full queue, or NaN where it is unknown."""
    profile = passed_profile(result)
    theirs = None if profile is None else profile.timing(baseline)
    if profile is None or theirs is None or not theirs.queued_us or not profile.candidate.queued_us:
        return math.nan
    return theirs.queued_us / profile.candidate.queued_us


def passed_profile(result: BenchResult) -> ProfileReport | None:
    """Returns the profile of a candidate that passed."""
    return None if result.evaluation is None else result.evaluation.passed_profile


def verdict_of(result: BenchResult) -> str:
    """Returns the judge's verdict on a task, or the run's outcome where nothing was judged."""
    return result.evaluation.verdict.value if result.evaluation is not None else result.outcome


def keeps_original(result: BenchResult) -> bool:
    """Whether a candidate passed but doesn't beat the matched baseline, so that the original stays."""
    return closest_attempt(result.evaluation) is not None


def _group(by: By, name: str, results: Sequence[BenchResult]) -> MetricsGroup:
    passed = _numbers(verdict_of(result) == Verdict.PASSED.value for result in results)
    rewards = Counter(str(result.reward.value) for result in results if result.reward is not None)
    return MetricsGroup(
        by=by,
        name=name,
        tasks=len(results),
        passed=estimate(passed, _mean),
        kept=sum(map(keeps_original, results)),
        against=tuple(_against(results, baseline) for baseline in BASELINES),
        verdicts=dict(sorted(Counter(map(verdict_of, results)).items())),
        rewards=dict(sorted(rewards.items())),
    )


def _against(results: Sequence[BenchResult], baseline: str) -> Against:
    ratios = [speedup(result, baseline) for result in results]
    # NaN where the task failed or has no time of this baseline.
    values = _numbers(math.nan if ratio is None else ratio.value for ratio in ratios)
    logs = np.log(values)
    # Where the original stays, nothing is gained or lost.
    kept = np.fromiter(map(keeps_original, results), dtype=bool)
    filled = np.where(kept, 0.0, np.nan_to_num(logs, nan=0.0))
    return Against(
        baseline=baseline,
        faster=estimate(_numbers(np.nan_to_num(logs, nan=0.0) > 0), _mean),
        significantly_faster=estimate(_numbers(ratio is not None and ratio.low > 1.0 for ratio in ratios), _mean),
        faster_by_5_percent=estimate(_numbers(map(is_faster, ratios)), _mean),
        # The bootstrap draws from all tasks, and the correct ones among those drawn count.
        geomean_correct=exponential(estimate(logs, _mean)),
        geomean_all=exponential(estimate(filled, _mean)),
        median_correct=exponential(estimate(logs, _median)),
        median_all=exponential(estimate(filled, _median)),
        geomean_queued=exponential(estimate(np.log(_numbers(queued(result, baseline) for result in results)), _mean)),
        top_tenth_share=top_tenth_share(logs[~np.isnan(logs)]),
        thresholds=THRESHOLDS,
        fast_p=tuple(float(np.mean(np.nan_to_num(values, nan=0.0) > p)) for p in THRESHOLDS),
    )


def _numbers(values: Iterable[float]) -> Numbers:
    return np.fromiter(values, dtype=np.float64)


def top_tenth_share(logs: Numbers) -> float | None:
    """Returns the share of the largest tenth (at least one) of the positive log speed-ups in their sum, or None where
    no task is faster."""
    gains = np.sort(logs[logs > 0])[::-1]
    if not len(gains):
        return None
    return float(gains[: math.ceil(len(gains) / 10)].sum() / gains.sum())


#: Computes a number from each row.
Statistic = Callable[[Numbers], Numbers]


def estimate(values: Numbers, statistic: Statistic) -> Estimate:
    """Returns a statistic of tasks with its 95 % bootstrap interval. A single task has no interval, and no task has no
    value."""
    if not len(values):
        return Estimate(value=None)
    value = float(statistic(values[None, :])[0])
    if math.isnan(value):
        return Estimate(value=None)
    if np.count_nonzero(~np.isnan(values)) < 2:
        return Estimate(value=value)
    low, high = interval(values, statistic)
    return Estimate(value=value, low=min(low, value), high=max(high, value))


def interval(values: Numbers, statistic: Statistic) -> tuple[float, float]:
    """Returns the middle 95 % of the statistic over resampled tasks; the draws are the same for the same number of
    tasks."""
    draws = np.random.default_rng(SEED).integers(0, len(values), size=(RESAMPLES, len(values)))
    found = statistic(values[draws])
    low, high = np.nanpercentile(found, (_TAIL, 100 - _TAIL))
    return float(low), float(high)


def _mean(rows: Numbers) -> Numbers:
    """Returns the mean of each row without its NaNs."""
    found: Numbers = np.ma.array(rows, mask=np.isnan(rows)).mean(axis=1).filled(np.nan)
    return found


def _median(rows: Numbers) -> Numbers:
    """Returns the median of each row without its NaNs."""
    ordered = np.sort(rows, axis=1)
    counts = (~np.isnan(rows)).sum(axis=1)
    # NaNs are sorted to the end.
    at = np.arange(len(rows))
    low, high = ordered[at, np.maximum(counts - 1, 0) // 2], ordered[at, np.minimum(counts // 2, rows.shape[1] - 1)]
    found: Numbers = np.where(counts > 0, (low + high) / 2, np.nan)
    return found


def exponential(logs: Estimate) -> Estimate:
    """Returns the exponentials of an estimate and its interval."""
    return Estimate(**{name: None if value is None else math.exp(value) for name, value in logs.model_dump().items()})
