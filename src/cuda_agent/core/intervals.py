"""Medians and their intervals by order statistics. The functions are pure.

For n independent samples x(1) ≤ … ≤ x(n) and any continuous distribution,
P(x(k) ≤ median ≤ x(n+1-k)) = 1 - 2·P(Bin(n, ½) < k). It needs no normality, and a single disturbed round can't widen it
without bound. Below six rounds no k reaches 95 %, so the interval is [min, max] (93.75 % for five).

Rounds are not independent where the machine's state (a slower core, a clock state) outlasts a round. The rank counts
the samples below the median. The variance of this count grows by `dependence`, estimated from the order of the samples,
so the ranks move outward by its square root.
"""

import math
import statistics
from collections.abc import Iterable, Sequence

CONFIDENCE = 0.95
#: the middle value, or the mean of the two middle ones. Raises ValueError without values.
median = statistics.median


def _ordered(values: Iterable[float]) -> list[float]:
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    return ordered


def _rank(count: int, tail: float) -> int:
    """Returns the largest k ≥ 1 with P(Bin(count, ½) < k) ≤ tail, or 1 for too few samples."""
    if count > 1000:
        # The exact sum needs huge integers and changes no rank by more than one, so this is the normal approximation.
        z = 1.96 if tail <= 0.025 else 1.645
        return max(1, math.floor(count / 2 - z * math.sqrt(count) / 2))
    below, rank = 0, 1
    for k in range(1, count // 2 + 1):
        below += math.comb(count, k - 1)
        if below > tail * 2**count:
            break
        rank = k
    return rank


def dependence(values: Sequence[float]) -> float:
    """Returns the variance of the number of values below the median, over that of independent ones; at least 1.

    It is 1 + 2·Σ ρ(k), with ρ(k) the autocorrelation at lag k of whether a value is above the median. The sum has ρ(1)
    if it is positive, and the following terms as long as they exceed their standard error 1/√n. The median is the
    sample's own, which makes ρ too small by 1/n.
    """
    count = len(values)
    if count < 3:
        return 1.0
    middle = median(values)
    signs = [(value > middle) - (value < middle) for value in values]
    total = 0.0
    for lag in range(1, count // 3 + 1):
        products = sum(a * b for a, b in zip(signs, signs[lag:], strict=False))
        correlation = products / (count - lag) + 1 / count
        if correlation <= (0.0 if lag == 1 else 1 / math.sqrt(count)):
            break
        total += min(1.0, correlation)
    return 1.0 + 2.0 * total


def _outward(values: Sequence[float], tail: float) -> int:
    """Returns the rank for independent samples, moved outward for their dependence."""
    count = len(values)
    half = count / 2
    return max(1, math.floor(half - (half - _rank(count, tail)) * math.sqrt(dependence(values))))


def interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Returns the interval of the median of values in the order in which they were measured; [min, max] for too few
    (below six at 95 %). Raises ValueError without values."""
    ordered = _ordered(values)
    rank = _outward(values, (1 - confidence) / 2)
    return ordered[rank - 1], ordered[-rank]


def lower_bound(values: Sequence[float]) -> float:
    """Returns the one-sided lower 95 % bound of the median (the smallest value below eight samples)."""
    ordered = _ordered(values)
    return ordered[_outward(values, 1 - CONFIDENCE) - 1]


def low_quantile(values: Sequence[float]) -> float:
    """Returns a value that at least 95 % of the values reach (the smallest one below forty). Raises ValueError without
    values."""
    ordered = _ordered(values)
    return ordered[max(0, math.floor((1 - CONFIDENCE) * len(ordered)) - 1)]
