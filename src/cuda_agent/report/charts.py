"""Computes the shapes of a run's drawings; `assets/charts.html.j2` writes them as SVG."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cuda_agent.core.baselines import BASELINES
from cuda_agent.core.bench import Against
from cuda_agent.core.inspection import Roofline
from cuda_agent.report.rows import ReportRow
from cuda_agent.report.scales import AxisTick, Scale, short
from cuda_agent.report.training import Series
from cuda_agent.report.units import geometric_mean, times


@dataclass(frozen=True)
class HistogramBar:
    x: float
    y: float
    width: float
    height: float
    title: str
    faster: bool


@dataclass(frozen=True)
class Histogram:
    """Speed-ups over one baseline on a logarithmic axis. `one` and `mean` are the places of 1× and the geometric
    mean."""

    baseline: str
    bars: tuple[HistogramBar, ...]
    ticks: tuple[AxisTick, ...]
    counts: tuple[AxisTick, ...]
    one: float
    mean: AxisTick | None
    timed: int
    tasks: int


HISTOGRAM = (360.0, 190.0)
_LEFT, _RIGHT, _TOP, _BOTTOM = 34.0, 10.0, 20.0, 26.0


def histograms(rows: Sequence[ReportRow]) -> tuple[Histogram, ...]:
    """Returns one histogram for each timed baseline, all on the same axis."""
    values = {name: [ratio.value for row in rows if (ratio := row.ratio(name))] for name in BASELINES}
    every = [value for found in values.values() for value in found]
    if not every:
        return ()
    # The bins are a tenth of a doubling wide where the ratios span little, and wider where they span much. 1 is always
    # an edge.
    span = math.log2(max(*every, 1.05)) - math.log2(min(*every, 0.95))
    width = next((size for size in (0.1, 0.2, 0.25, 0.5, 1.0) if span / size <= 36), 1.0)
    first, last = math.floor(math.log2(min(*every, 0.95)) / width), math.floor(math.log2(max(*every, 1.05)) / width)
    x = Scale(2 ** (first * width), 2 ** ((last + 1) * width), _LEFT, HISTOGRAM[0] - _RIGHT, log=True)
    return tuple(_histogram(name, found, x, width, len(rows)) for name, found in values.items() if found)


def _histogram(name: str, values: list[float], x: Scale, width: float, tasks: int) -> Histogram:
    bins = Counter(math.floor(math.log2(value) / width + 1e-9) for value in values)
    y = Scale(0, max(bins.values()) * 1.08, HISTOGRAM[1] - _BOTTOM, _TOP)
    bars = []
    for index, count in sorted(bins.items()):
        low, high = 2 ** (index * width), 2 ** ((index + 1) * width)
        left, right, top = x.at(low), x.at(high), y.at(count)
        size = max(1.0, round(right - left - 1, 1)), round(y.start - top, 1)
        title = f"{count} of {tasks} tasks: {times(low)} to {times(high)}"
        bars.append(HistogramBar(left + 0.5, top, *size, title, index >= 0))
    mean = geometric_mean(values)
    mark = AxisTick(x.at(mean), times(mean)) if mean is not None else None
    counts = tuple(tick for tick in y.ticks(4) if float(tick.label.replace(",", "")).is_integer())
    return Histogram(name, tuple(bars), x.ticks(7), counts, x.at(1.0), mark, len(values), tasks)


@dataclass(frozen=True)
class Line:
    name: str
    path: str
    end: tuple[float, float]
    title: str = ""


@dataclass(frozen=True)
class Curves:
    lines: tuple[Line, ...]
    x_ticks: tuple[AxisTick, ...]
    y_ticks: tuple[AxisTick, ...]
    one: float | None = None


CURVES = (560.0, 300.0)


def fast_p(against: Sequence[Against]) -> Curves | None:
    """Draws, over p, the share of all tasks that are at least p times as fast as the baseline."""
    known = [item for item in against if item.thresholds]
    if not known:
        return None
    highest = max(p for item in known for p in item.thresholds)
    lowest = min(p for item in known for p in item.thresholds if p > 0) if highest > 0 else 1.0
    x = Scale(lowest, max(highest, lowest * 1.1), 44, CURVES[0] - 96, log=True)
    y = Scale(0, 1, CURVES[1] - 34, 12)
    lines = []
    for item in known:
        points = [(x.at(p), y.at(share)) for p, share in zip(item.thresholds, item.fast_p, strict=False) if p >= lowest]
        path = "M" + "L".join(f"{a:g} {b:g}" for a, b in points)
        lines.append(Line(item.baseline, path, points[-1]))
    percent = tuple(AxisTick(y.at(share / 100), f"{share} %") for share in (0, 25, 50, 75, 100))
    return Curves(tuple(_spread(lines)), x.ticks(8), percent, x.at(1.0))


def _spread(lines: list[Line]) -> list[Line]:
    """Moves the ends of the lines apart, so that their names don't overlap."""
    placed: list[Line] = []
    for line in sorted(lines, key=lambda item: item.end[1]):
        floor = placed[-1].end[1] + 15 if placed else 0.0
        placed.append(replace(line, end=(line.end[0], max(line.end[1], floor))))
    overflow = max(0.0, placed[-1].end[1] - (CURVES[1] - 36)) if placed else 0.0
    return [replace(item, end=(item.end[0], item.end[1] - overflow)) for item in placed]


@dataclass(frozen=True)
class FunnelStage:
    """One stage of the funnel: the tasks that reached it, and the verdicts of those that didn't."""

    name: str
    count: int
    share: float
    lost: tuple[tuple[str, int], ...] = ()


def funnel(rows: Sequence[ReportRow]) -> tuple[FunnelStage, ...]:
    """Returns the stages from all tasks to those that are faster than every baseline. Each holds a part of the one
    before."""
    stages: list[FunnelStage] = []
    left = list(rows)

    def stage(name: str, kept: list[ReportRow], lost: Counter[str] | None = None) -> None:
        gone = tuple((lost or Counter()).most_common())
        stages.append(FunnelStage(name, len(kept), len(kept) / len(rows) if rows else 0.0, gone))

    stage("tasks", left)
    for name, keeps in (
        ("a candidate was judged", lambda row: row.evaluation is not None),
        ("it built and loaded", lambda row: row.evaluation.verify is not None or row.profile is not None),
        ("its answers were right", lambda row: row.evaluation.verify is not None and row.evaluation.verify.passed),
        ("it passed every rule and was timed", lambda row: row.profile is not None),
    ):
        kept = [row for row in left if keeps(row)]
        stage(name, kept, Counter(row.verdict for row in left if not keeps(row)))
        left = kept
    for baseline in BASELINES:
        left_faster = [row for row in left if row.is_faster(baseline)]
        label = {"matched": "the matched baseline too", "compile": "torch.compile too"}.get(baseline, baseline)
        stage(f"at least 5 % faster than {label}", left_faster)
        left = left_faster
    return tuple(stages)


@dataclass(frozen=True)
class Dot:
    """A task on the roofline. `before` is eager's height, `after` the candidate's."""

    id: str
    x: float
    before: float | None
    after: float
    title: str


@dataclass(frozen=True)
class Roof:
    dots: tuple[Dot, ...]
    ceilings: tuple[Line, ...]
    x_ticks: tuple[AxisTick, ...]
    y_ticks: tuple[AxisTick, ...]
    measured: bool


ROOF = (1120.0, 430.0)


def roofline(rows: Sequence[ReportRow], limits: Roofline | None) -> Roof | None:
    """Draws operations a second over operations a byte, both counted on the reference. Returns None where no work was
    counted."""
    counted = [row for row in rows if row.task.work is not None and row.ours is not None and _flops(row) > 0]
    if not counted:
        return None
    intensities = [_flops(row) / max(1, row.task.work.bytes) for row in counted if row.task.work]
    rates = [_flops(row) / t.latency_us / 1e6 for row in counted for t in (row.ours, row.timing("eager")) if t]
    peaks = _peaks(limits)
    high = max([*rates, *(peak for _, peak in peaks)]) * 1.6
    corner = max([peak * 1e3 / limits.bandwidth_gb_s for _, peak in peaks]) if limits and peaks else 0.0
    x = Scale(min(intensities) / 2, max([*intensities, corner]) * 2, 56, ROOF[0] - 20, log=True)
    y = Scale(min(rates) / 2, high, ROOF[1] - 40, 14, log=True)
    dots = []
    for row, intensity in zip(counted, intensities, strict=True):
        after, eager = row.ours, row.timing("eager")
        assert after is not None
        rate = _flops(row) / after.latency_us / 1e6
        before = y.at(_flops(row) / eager.latency_us / 1e6) if eager else None
        ratio = row.ratio("eager")
        said = f", {times(ratio.value)} over eager" if ratio else ""
        title = f"{row.task.id}: {intensity:.3g} flop/byte, {rate:.3g} Tflop/s, {row.gb_s(after) or 0:,.0f} GB/s{said}"
        dots.append(Dot(row.task.id, x.at(intensity), before, y.at(rate), title))
    return Roof(tuple(dots), _ceilings(limits, peaks, x, y), x.ticks(8), y.ticks(7), limits is not None)


def _flops(row: ReportRow) -> int:
    work = row.task.work
    return work.product_flops + work.other_flops if work is not None else 0


def _peaks(limits: Roofline | None) -> list[tuple[str, float]]:
    if limits is None:
        return []
    known = (("16 bit", limits.half_tflops), ("TF32", limits.tf32_tflops), ("float32", limits.fp32_tflops))
    return [(f"{name} products, {short(peak)} Tflop/s", peak) for name, peak in known if peak]


def _ceilings(limits: Roofline | None, peaks: list[tuple[str, float]], x: Scale, y: Scale) -> tuple[Line, ...]:
    if limits is None:
        return ()
    slope = limits.bandwidth_gb_s / 1e3
    top = max([peak for _, peak in peaks], default=y.high)
    begin, end = max(x.low, y.low / slope), min(x.high, top / slope)
    diagonal = f"M{x.at(begin):g} {y.at(begin * slope):g}L{x.at(end):g} {y.at(end * slope):g}"
    name = f"memory, {short(limits.bandwidth_gb_s)} GB/s"
    lines = [Line(name, diagonal, (x.at(begin) + 8, y.at(begin * slope) - 8), "memory")]
    for label, peak in peaks:
        left = x.at(max(x.low, peak / slope))
        lines.append(Line(label, f"M{left:g} {y.at(peak):g}H{x.end:g}", (x.end, y.at(peak) - 5), "compute"))
    return tuple(lines)


TREND = (360.0, 150.0)


def trend(series: Series) -> Curves | None:
    """Draws one metric of a training run over its steps."""
    if len(series.points) < 2:
        return None
    steps, values = [step for step, _ in series.points], [value for _, value in series.points]
    low, high = min(values), max(values)
    pad = (high - low) * 0.06 or abs(high) * 0.06 or 1.0
    x = Scale(min(steps), max(steps), 46, TREND[0] - 10)
    y = Scale(low - pad, high + pad, TREND[1] - 24, 10)
    places = dict.fromkeys((x.at(step), y.at(value)) for step, value in series.points)
    path = "M" + "L".join(f"{a:g} {b:g}" for a, b in places)
    return Curves((Line(series.name, path, list(places)[-1]),), x.ticks(5), y.ticks(4))
