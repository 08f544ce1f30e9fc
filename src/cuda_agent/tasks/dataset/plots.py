"""Plots a dataset as SVG files, readable on light and dark grounds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cuda_agent.core.assets import filled
from cuda_agent.core.files import write_durably
from cuda_agent.tasks.dataset.stats import Point, Stats, bound_of, logarithmic, ridge_of
from cuda_agent.tasks.decontaminate.stage import Decontamination
from cuda_agent.tasks.filter.funnel import Funnel

WIDTH = 760
_TOP, _LEFT, _RIGHT, _BOTTOM = 62, 64, 20, 46
_BAR, _GAP = 14, 8
_MOST_POINTS = 3000


@dataclass(frozen=True)
class Bar:
    """A named number. `second` is another number, drawn behind it as a mark. `note` is written at its end."""

    name: str
    value: float
    note: str
    second: float | None = None


#: The ticks of an axis: places in pixels, and their texts.
Ticks = Sequence[tuple[float, str]]


def write_plots(stats: Stats, out: Path) -> list[Path]:
    """Writes the plots for which there are numbers. Raises StoreError."""
    plots = {
        "composition": _composition(stats),
        "operators": _operators(stats),
        "roofline": _roofline(stats) if stats.points else None,
        "times": _times(stats),
        "funnel": _funnel(stats.funnel) if stats.funnel is not None else None,
        "similarity": _similarity(stats.decontamination) if stats.decontamination is not None else None,
    }
    written = []
    for name, text in plots.items():
        if text is not None:
            written.append(out / f"{name}.svg")
            write_durably(written[-1], text)
    return written


def _composition(stats: Stats) -> str:
    bars = [
        Bar(s.origin, s.percent, f"{s.percent:.2f} %  (published {s.published_percent:.2f} %)", s.published_percent)
        for s in stats.composition
    ]
    return _bars("Composition", f"share of {stats.tasks:,} tasks by origin; the mark is the published share", bars)


def _operators(stats: Stats, most: int = 30) -> str:
    bars = [Bar(name, count, f"{count:,}") for name, count in list(stats.seeds.items())[:most]]
    largest = stats.largest_seed_percent
    caption = f"tasks that use a seed; {len(stats.seeds)} seeds, the most frequent in {largest:.1f} % of the tasks"
    return _bars(f"The {len(bars)} most frequent seeds", caption, bars)


def _funnel(funnel: Funnel) -> str:
    asked = funnel.all.candidates - funnel.all.unknown
    bars = [Bar("asked", asked, f"{asked:,}")]
    for stage in funnel.all.stages:
        lost = f"{stage.left:,}" + (f"  (−{stage.broke:,})" if stage.broke else "")
        bars.append(Bar(stage.rule.value.replace("_", " "), stage.left, lost))
    return _bars("Funnel", "candidates that are left after each rule, in the order of the checks", bars)


def _times(stats: Stats) -> str:
    measured = [point.eager_us / 1e3 for point in stats.points if point.eager_us is not None]
    values = measured or [point.predicted_us / 1e3 for point in stats.points]
    counts, low, high = logarithmic(values, 48)
    word = "measured" if measured else "predicted"
    return _histogram(f"Eager time, {word}", "tasks by ms of one forward pass", counts, _decades(low, high))


def _similarity(account: Decontamination) -> str:
    ticks = [(_x(place / 10), f"{place / 10:.1f}") for place in range(11)]
    caption = f"{account.tasks:,} tasks by similarity to the nearest of {account.references:,}; line: the bound"
    return _histogram("Similarity to evaluation tasks", caption, account.histogram, ticks, mark=_x(account.threshold))


def _roofline(stats: Stats) -> str:
    points = stats.points[:: max(1, math.ceil(len(stats.points) / _MOST_POINTS))]
    height = 430
    wanted = [(p.flops / max(1.0, p.bytes), _us(p) / 1e3, bound_of(p, stats.rates)) for p in points]
    _, x_low, x_high = logarithmic([x for x, _, _ in wanted], 1)
    _, y_low, y_high = logarithmic([y for _, y, _ in wanted], 1)

    def x(value: float) -> float:
        return _x(_share(value, x_low, x_high))

    def y(value: float) -> float:
        return height - _BOTTOM - _share(value, y_low, y_high) * (height - _BOTTOM - _TOP)

    total = max(1, sum(stats.bound.values()))
    memory, compute = (100 * stats.bound.get(kind, 0) / total for kind in ("memory", "compute"))
    return _render(
        "scatter.svg.j2",
        height=height,
        title="Roofline class",
        caption=f"{memory:.0f} % bound by memory, {compute:.0f} % by compute; line: the ridge of {stats.rates.name}",
        points=[(round(x(a), 1), round(y(b), 1), kind) for a, b, kind in wanted],
        x_ticks=_decades(x_low, x_high),
        y_ticks=[(y(power), _said(power)) for power in _powers(y_low, y_high)],
        x_title="operations for each byte",
        y_title="eager ms",
        mark=x(ridge_of(stats.rates)) if x_low <= ridge_of(stats.rates) <= x_high else None,
    )


def _us(point: Point) -> float:
    return point.eager_us if point.eager_us is not None else point.predicted_us


def _x(share: float) -> float:
    return _LEFT + share * (WIDTH - _LEFT - _RIGHT)


def _share(value: float, low: float, high: float) -> float:
    """Returns the place of a value on a logarithmic axis, from 0 to 1."""
    return min(1.0, math.log10(max(value, low) / low) / math.log10(high / low))


def _powers(low: float, high: float) -> list[float]:
    """Returns the powers of ten on an axis between two of them."""
    return [10.0**exponent for exponent in range(round(math.log10(low)), round(math.log10(high)) + 1)]


def _decades(low: float, high: float) -> Ticks:
    return [(_x(_share(power, low, high)), _said(power)) for power in _powers(low, high)]


def _said(value: float) -> str:
    return f"{value:,.0f}" if 1 <= value < 1e5 else f"{value:g}"


def _bars(title: str, caption: str, bars: Sequence[Bar]) -> str:
    left = 24 + max((7.2 * len(bar.name) for bar in bars), default=0)
    room = WIDTH - left - 24 - max((6.6 * len(bar.note) for bar in bars), default=0)
    most = max((max(bar.value, bar.second or 0) for bar in bars), default=0) or 1
    return _render(
        "bars.svg.j2",
        height=_TOP + len(bars) * (_BAR + _GAP) + 20,
        title=title,
        caption=caption,
        left=left,
        bar=_BAR,
        step=_BAR + _GAP,
        scale=room / most,
        bars=bars,
    )


def _histogram(title: str, caption: str, counts: Sequence[int], ticks: Ticks, mark: float | None = None) -> str:
    height = 330
    floor = height - _BOTTOM
    most = max(counts, default=0) or 1
    step = (WIDTH - _LEFT - _RIGHT) / max(1, len(counts))
    columns = [
        (round(_LEFT + place * step + 0.5, 1), round(floor - count / most * (floor - _TOP), 1), count)
        for place, count in enumerate(counts)
        if count
    ]
    steps = sorted({0, round(most / 2), most})
    return _render(
        "histogram.svg.j2",
        height=height,
        title=title,
        caption=caption,
        floor=floor,
        column=round(step - 1, 1),
        columns=columns,
        x_ticks=ticks,
        y_ticks=[(floor - s / most * (floor - _TOP), f"{s:,}") for s in steps],
        mark=mark,
    )


def _render(template: str, **values: object) -> str:
    axes = {"axis_left": _LEFT, "axis_right": WIDTH - _RIGHT, "axis_top": _TOP, "axis_bottom": _BOTTOM}
    return filled(Path(__file__).parent / "templates" / template, width=WIDTH, **axes, **values)
