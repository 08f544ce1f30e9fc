"""Numbers as people read them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime


def microseconds(value: float) -> str:
    """`1,234.5`: thousands separators, about four significant digits."""
    digits = 0 if value >= 1000 else 1 if value >= 100 else 2
    return f"{value:,.{digits}f}"


def interval(low: float, high: float) -> str:
    """`[1,230, 1,240]` in microseconds."""
    return f"[{microseconds(low)}, {microseconds(high)}]"


def bounds(low: float, high: float) -> str:
    """`[1.21, 1.25]`: the interval of a ratio."""
    return f"[{low:.2f}, {high:.2f}]"


def times(value: float) -> str:
    """`1.23×`."""
    return f"{value:.2f}×" if value < 100 else f"{value:,.0f}×"


def geometric_mean(values: Iterable[float]) -> float | None:
    """None where there is no value. Values are positive."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else None


def seconds(value: float) -> str:
    """`12.3 s`, `4 min 05 s`."""
    if value < 100:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest:02d} s"


def percent(value: float, digits: int = 0) -> str:
    """`12 %` of a share."""
    return f"{100 * value:.{digits}f} %"


def moment(iso: str) -> str:
    """`21 November 2026, 18:21 UTC` of an ISO time; anything else as it is."""
    try:
        when = datetime.fromisoformat(iso)
    except ValueError:
        return iso
    return f"{when.day} {when:%B %Y, %H:%M} {when:%Z}".rstrip()
