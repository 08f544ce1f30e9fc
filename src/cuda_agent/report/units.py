"""Formats numbers for people."""

import math
from collections.abc import Callable, Iterable
from datetime import datetime


def known(value: float | None, shown: Callable[[float], str]) -> str:
    """Returns the formatted number, or a dash where there is none."""
    return "—" if value is None else shown(value)


def microseconds(value: float) -> str:
    """Returns `1,234.5`: thousands separators, about four significant digits."""
    digits = 0 if value >= 1000 else 1 if value >= 100 else 2
    return f"{value:,.{digits}f}"


def interval(low: float, high: float) -> str:
    """Returns `[1,230, 1,240]` for an interval in microseconds."""
    return f"[{microseconds(low)}, {microseconds(high)}]"


def bounds(low: float, high: float) -> str:
    """Returns `[1.21, 1.25]` for the interval of a ratio."""
    return f"[{low:.2f}, {high:.2f}]"


def times(value: float) -> str:
    """Returns `1.23×`."""
    return f"{value:.2f}×" if value < 100 else f"{value:,.0f}×"


def geometric_mean(values: Iterable[float]) -> float | None:
    """Returns the geometric mean of positive values, or None without values."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else None


def seconds(value: float) -> str:
    """Returns `12.3 s` or `4 min 05 s`."""
    if value < 100:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest:02d} s"


def percent(value: float, digits: int = 0) -> str:
    """Returns `12 %` for the share 0.12."""
    return f"{100 * value:.{digits}f} %"


def moment(iso: str) -> str:
    """Returns `21 November 2026, 18:21 UTC` for an ISO time, and any other text unchanged."""
    try:
        when = datetime.fromisoformat(iso)
    except ValueError:
        return iso
    return f"{when.day} {when:%B %Y, %H:%M} {when:%Z}".rstrip()
