"""Draws the samples of each timed program as a strip, and bars that compare the programs."""

import statistics
from collections import Counter
from dataclasses import dataclass

from cuda_agent.core.baselines import Baseline
from cuda_agent.core.records import ProfileReport, Ratio, Timing
from cuda_agent.report.scales import AxisTick, Scale

STRIP = (420.0, 44.0)
BAR = (220.0, 16.0)
_HIGHEST = 26.0
_STEP = 2.0


@dataclass(frozen=True)
class Strip:
    """A histogram of samples as one path. `low`..`high` are the places of the 95 % interval, `median` is the place of
    the reported time. `values` are the samples with four significant digits."""

    path: str
    ticks: tuple[AxisTick, ...]
    low: float
    high: float
    median: float
    values: str
    count: int
    least: float
    most: float


@dataclass(frozen=True)
class Program:
    """One line of a task's times. `bar`, `bar_low` and `bar_high` are lengths relative to the slowest program."""

    label: str
    role: str
    timing: Timing
    ratio: Ratio | None
    bar: float
    bar_low: float
    bar_high: float
    strip: Strip | None


def programs(profile: ProfileReport) -> tuple[Program, ...]:
    """Returns the candidate, then the baselines from the fastest to the slowest."""
    slowest = max(t.high_us for t in (profile.candidate, *profile.baselines.values()))
    scale = Scale(0, slowest, 0, BAR[0])
    order = sorted(profile.baselines, key=lambda name: profile.baselines[name].latency_us)
    found = [_program("this candidate", "ours", profile.candidate, None, scale)]
    for name in order:
        role = "matched" if name == profile.matched else name if name in ("eager", "compile") else "other"
        label = Baseline.parse(name).label + (" — matched baseline" if name == profile.matched else "")
        found.append(_program(label, role, profile.baselines[name], profile.ratios.get(name), scale))
    return tuple(found)


def _program(label: str, role: str, timing: Timing, ratio: Ratio | None, scale: Scale) -> Program:
    bar, low, high = (scale.at(value) for value in (timing.latency_us, timing.low_us, timing.high_us))
    return Program(label, role, timing, ratio, bar, low, high, _strip(timing))


def _strip(timing: Timing) -> Strip | None:
    samples = timing.samples_us
    if len(samples) < 2:
        return None
    # A single outlier must not squeeze all other samples into one column, so it is drawn at the edge.
    ordered = sorted(samples)
    far = statistics.quantiles(ordered, n=50)[-1] if len(ordered) > 20 else ordered[-1]
    low, high = min(ordered[0], timing.low_us), max(far, timing.high_us)
    pad = (high - low) * 0.03 or high * 0.01
    x = Scale(low - pad, high + pad, 6, STRIP[0] - 6)
    columns = Counter(round(x.at(value) / _STEP) for value in samples)
    tallest = max(columns.values())
    path = "".join(
        f"M{column * _STEP:g} {_HIGHEST + 2:g}v{-max(2.0, round(_HIGHEST * count / tallest, 1)):g}"
        for column, count in sorted(columns.items())
    )
    values = " ".join(f"{value:.4g}" if value < 1000 else f"{value:.0f}" for value in samples)
    return Strip(
        path, x.ticks(5), x.at(timing.low_us), x.at(timing.high_us), x.at(timing.latency_us), values, len(samples),
        ordered[0], ordered[-1],
    )  # fmt: skip
