"""The statistics of a dataset, from its folder's files: composition, operators, cost, roofline class, times, funnel."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from pydantic import Field

from cuda_agent.core.errors import UsageError
from cuda_agent.core.record import Record, StoredRecord
from cuda_agent.tasks.choose import choose
from cuda_agent.tasks.compose.rates import Rates, rates_for
from cuda_agent.tasks.compose.run import ComposeSettings
from cuda_agent.tasks.dataset.export import Share, shares
from cuda_agent.tasks.dataset.folder import read_stages
from cuda_agent.tasks.dataset.importing import is_exported, read_exported, split_of
from cuda_agent.tasks.decontaminate.stage import Decontamination
from cuda_agent.tasks.filter.funnel import Funnel, funnel
from cuda_agent.tasks.records import Cost, DatasetTask, Measurement

_QUANTILES = (0.0, 0.1, 0.5, 0.9, 1.0)


class Spread(Record):
    """The least value, the tenth, fiftieth and ninetieth percentile, and the largest value."""

    least: float
    low: float
    median: float
    high: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread | None":
        ordered = sorted(values)
        if not ordered:
            return None
        picked = (ordered[round(q * (len(ordered) - 1))] for q in _QUANTILES)
        return cls(**dict(zip(cls.model_fields, picked, strict=True)))


class Point(Record):
    """The operations and bytes of one task's pass, and its measured time if there is one."""

    flops: float
    bytes: float
    predicted_us: float
    eager_us: float | None = None


class Stats(StoredRecord):
    """The statistics of the tasks that passed all stages so far. `seeds` and `operators` count the tasks that use each;
    operators are those of the captured graphs. `bound` counts tasks by their limit on the roofline of `rates`."""

    file_name = "stats.json"
    candidates: int
    tasks: int
    composition: tuple[Share, ...]
    seeds: dict[str, int]
    operators: dict[str, int]
    graphs: int
    splits: dict[str, int]
    flops: Spread | None
    bytes: Spread | None
    predicted_us: Spread | None
    eager_us: Spread | None
    #: Measured over predicted times.
    prediction: Spread | None
    bound: dict[str, int]
    rates: Rates
    funnel: Funnel | None = None
    decontamination: Decontamination | None = None
    points: tuple[Point, ...] = Field(default=(), repr=False)

    @property
    def largest_seed_percent(self) -> float:
        return 100 * max(self.seeds.values(), default=0) / max(1, self.tasks)


def read_stats(folder: Path, stack: str | None = None, count: int | None = None) -> Stats:
    """Returns the statistics of a folder of the stages (`count` tasks at the published shares, by default all that
    passed), or of an exported one. Raises UsageError where it is neither, StoreError."""
    flow = account = None
    if is_exported(folder):
        if stack is not None:
            raise UsageError(f"{folder} is an exported dataset, which has one stack", "Omit --stack")
        tasks, by_key = read_exported(folder)
        candidates = len(tasks)
    else:
        stages = read_stages(folder, stack)
        tasks, candidates = stages.clean, len(stages.candidates)
        by_key = stages.measured.by_key if stages.measured is not None else {}
        flow = funnel(stages.candidates, by_key, stages.found_later) if by_key else None
        account = Decontamination.read(folder) if stages.similarities is not None else None
    chosen = tasks if count is None else choose(tasks, count)
    if chosen is None:
        raise UsageError(f"{folder} has too few tasks of some kind for {count}", "Omit --count")
    settings = ComposeSettings.find(folder)
    rates = settings.target.rates if settings is not None else rates_for("H200")
    stats = _counted(candidates, chosen, by_key, rates)
    return stats.model_copy(update={"funnel": flow, "decontamination": account})


def _counted(candidates: int, tasks: Sequence[DatasetTask], by_key: Mapping[str, Measurement], rates: Rates) -> Stats:
    found = [by_key[task.task.key] for task in tasks if task.task.key in by_key]
    graphs = [one.graph_hash for one in found if one.graph_hash is not None]
    points = [_point(task.cost, by_key.get(task.task.key)) for task in tasks if task.cost is not None]
    ratios = [p.eager_us / p.predicted_us for p in points if p.eager_us is not None and p.predicted_us > 0]
    return Stats(
        candidates=candidates,
        tasks=len(tasks),
        composition=shares(tasks),
        seeds=_ranked(Counter(seed for task in tasks for seed in set(task.ops))),
        operators=_ranked(Counter(op for one in found for op in set(one.graph_operators))),
        graphs=len(set(graphs)),
        splits=dict(Counter(split_of(graph) for graph in graphs)),
        flops=Spread.of([point.flops for point in points]),
        bytes=Spread.of([point.bytes for point in points]),
        predicted_us=Spread.of([point.predicted_us for point in points]),
        eager_us=Spread.of([one.eager_us for one in found if one.eager_us is not None]),
        prediction=Spread.of(ratios),
        bound=dict(Counter(bound_of(point, rates) for point in points)),
        rates=rates,
        points=tuple(points),
    )


def bound_of(point: Point, rates: Rates) -> str:
    """Returns `memory` where moving the bytes takes longer than the operations, else `compute`."""
    return "memory" if point.bytes * ridge_of(rates) >= point.flops else "compute"


def ridge_of(rates: Rates) -> float:
    """Returns the operations per byte above which a task is bound by compute."""
    return rates.product_tflops / rates.memory_tb_s


def logarithmic(values: Sequence[float], bins: int) -> tuple[list[int], float, float]:
    """Returns counts in bins of equal width on a logarithmic axis, and the ends of the axis (powers of ten)."""
    positive = [value for value in values if value > 0]
    if not positive:
        return [0] * bins, 1.0, 10.0
    low, high = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)) + 1e-9)
    high = max(high, low + 1)
    counts, _ = np.histogram(np.log10(positive), bins=bins, range=(low, high))
    return counts.tolist(), 10.0**low, 10.0**high


def _point(cost: Cost, measurement: Measurement | None) -> Point:
    predicted = cost.model_dump(include={"flops", "bytes", "predicted_us"})
    return Point(**predicted, eager_us=measurement.eager_us if measurement is not None else None)


def _ranked(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
