"""The metrics of runs that no benchmark counted, such as a folder of `optimize` runs: without intervals."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

from cuda_agent.core.bench import Against, Estimate, Group, Metrics
from cuda_agent.report.rows import BASELINES, Row
from cuda_agent.report.units import geometric_mean

_THRESHOLDS = (
    0.5,
    0.8,
    0.9,
    1.0,
    1.05,
    1.1,
    1.2,
    1.35,
    1.5,
    1.75,
    2.0,
    2.5,
    3.0,
    4.0,
    5.0,
    7.0,
    10.0,
    20.0,
    50.0,
    100.0,
)


def counted(rows: Sequence[Row]) -> Metrics:
    """Over all tasks that have ended; a failed one counts as 1 in the means over all."""
    ended = [row for row in rows if row.result is not None and row.state != "unfinished"]
    if not ended:
        return Metrics(tasks=len(rows), done=0, groups=())
    whole = Group(
        by="all",
        name="all",
        tasks=len(ended),
        passed=_share(row.state == "passed" for row in ended),
        against=tuple(_against(ended, name) for name in BASELINES),
        verdicts=dict(Counter(row.verdict for row in ended)),
        rewards=dict(Counter(str(row.result.reward.value) for row in ended if row.result and row.result.reward)),
    )
    return Metrics(tasks=len(rows), done=len(ended), groups=(whole,))


def _against(rows: Sequence[Row], name: str) -> Against:
    ratios = [ratio for row in rows if (ratio := row.ratio(name)) is not None]
    right = [ratio.value for ratio in ratios]
    every = [*right, *([1.0] * (len(rows) - len(right)))]
    missing = [False] * (len(rows) - len(right))
    return Against(
        baseline=name,
        faster=_share([*(ratio.value > 1 for ratio in ratios), *missing]),
        significantly_faster=_share([*(ratio.low > 1 for ratio in ratios), *missing]),
        faster_by_5_percent=_share(row.is_faster(name) for row in rows),
        geomean_correct=Estimate(value=geometric_mean(right)),
        geomean_all=Estimate(value=geometric_mean(every)),
        median_correct=Estimate(value=statistics.median(right) if right else None),
        median_all=Estimate(value=statistics.median(every)),
        top_tenth_share=None,
        thresholds=_THRESHOLDS,
        fast_p=tuple(sum(value > p for value in right) / len(rows) for p in _THRESHOLDS),
    )


def _share(truths: Iterable[bool]) -> Estimate:
    found = list(truths)
    return Estimate(value=sum(found) / len(found)) if found else Estimate(value=None)
