"""Maps numbers to places on a drawing: linear and logarithmic axes with ticks at round numbers."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class AxisTick:
    at: float
    label: str


@dataclass(frozen=True)
class Scale:
    """Maps numbers in `low`..`high` to places in `start`..`end`, where `end` may be smaller than `start`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """Returns the place of a value, rounded to a tenth. A value beyond an end is placed at that end."""
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        value = math.log(max(value, self.low)) if self.log else value
        share = (value - low) / (high - low) if high > low else 0.5
        return round(self.start + min(1.0, max(0.0, share)) * (self.end - self.start), 1)

    def ticks(self, most: int = 6) -> tuple[AxisTick, ...]:
        """Returns ticks at round numbers between the ends."""
        values = _log_ticks(self.low, self.high, most) if self.log else _linear_ticks(self.low, self.high, most)
        return tuple(AxisTick(self.at(value), short(value)) for value in values)


def short(value: float) -> str:
    """Returns a short form such as `0.05`, `1.5`, `12`, `3k`, `2M`."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            unit = 1e3 if letter == "k" else size
            return f"{value / unit:.3g}{letter}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _linear_ticks(low: float, high: float, most: int) -> list[float]:
    if high <= low:
        return [low]
    raw = (high - low) / max(1, most - 1)
    power: float = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw)
    first = math.ceil(low / step)
    return [round(index * step, 12) for index in range(first, math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        values = [step * 10.0**decade for decade in decades for step in steps]
        inside = [value for value in values if low * 0.999 <= value <= high * 1.001]
        if len(inside) <= most:
            return inside
    every = math.ceil(len(inside) / most)
    return inside[::every]
