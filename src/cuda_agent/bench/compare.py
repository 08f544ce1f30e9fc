"""Compares benchmark runs task by task, and tells differences from noise."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cuda_agent.bench.directory import machine_differences, read_results, stack_differences
from cuda_agent.bench.metrics import estimate, exponential, passed_profile, speedup, verdict_of
from cuda_agent.core.baselines import BASELINES
from cuda_agent.core.bench import BenchManifest, BenchResult, Cell, Comparison, Estimate, Paired, Row, Side
from cuda_agent.core.enums import Verdict
from cuda_agent.core.errors import UsageError
from cuda_agent.core.records import Timing
from cuda_agent.core.settings import differing

#: Fields of the stack that don't change the time of a kernel.
_HARMLESS = ("cuda_agent", "python")


@dataclass(frozen=True)
class _Run:
    directory: Path
    manifest: BenchManifest
    results: dict[str, BenchResult]


def compare(directories: Sequence[Path]) -> Comparison:
    """Compares two or more runs, matched by the tasks' keys. Raises UsageError where they have no task in common,
    StoreError."""
    if len(directories) < 2:
        raise UsageError("A single run can't be compared", "Give two or more")
    runs = [_read(directory) for directory in directories]
    first = runs[0]
    names = {entry.key: entry.id for run in reversed(runs) for entry in run.manifest.tasks}
    common = [key for key in names if all(any(e.key == key for e in run.manifest.tasks) for run in runs)]
    if not common:
        raise UsageError("The runs have no task in common", "Compare runs of the same suite")
    rows = tuple(Row(task=names[key], cells=tuple(_cell(run, first, key) for run in runs)) for key in names)
    return Comparison(
        sides=tuple(_side(run, first) for run in runs),
        rows=rows,
        paired=tuple(_paired(run, first, common, rows, index + 1) for index, run in enumerate(runs[1:])),
    )


def _read(directory: Path) -> _Run:
    if not (directory / BenchManifest.file_name).is_file():
        raise UsageError(f"{directory} has no benchmark run", "Give a directory that cuda-agent bench wrote")
    results = {result.task.key: result for result in read_results(directory)}
    return _Run(directory, BenchManifest.read(directory), results)


def _side(run: _Run, first: _Run) -> Side:
    before, after = first.manifest, run.manifest
    stack = [text for name, text in stack_differences(before.stack, after.stack).items() if name not in _HARMLESS]
    notes = machine_differences(before.stack, after.stack)
    options = differing(before.configuration, after.configuration)
    for resumed in after.resumed:
        notes += [f"since it was resumed: {change}" for change in resumed.changes]
    return Side(
        directory=str(run.directory),
        policy=after.policy,
        commit=after.commit,
        started=after.started,
        done=len(run.results),
        tasks=len(after.tasks),
        passed=sum(verdict_of(result) == Verdict.PASSED.value for result in run.results.values()),
        stack_differences=tuple(stack),
        option_differences=tuple(f"{name} {new}, was {old}" for name, (old, new) in options.items()),
        notes=tuple(notes),
    )


def _timing(result: BenchResult | None) -> Timing | None:
    profile = passed_profile(result) if result is not None else None
    return profile.candidate if profile is not None else None


def _cell(run: _Run, first: _Run, key: str) -> Cell:
    result, before = run.results.get(key), first.results.get(key)
    mine, theirs = _timing(result), _timing(before)
    if result is None:
        return Cell(result="", comparison="missing")
    fields = {} if mine is None else {"latency_us": mine.latency_us, "low_us": mine.low_us, "high_us": mine.high_us}
    cell = Cell(result=verdict_of(result), **fields)
    if run is first:
        return cell
    if before is None:
        comparison = "missing"
    elif mine is None or theirs is None:
        comparison = "gained" if mine is not None else "lost" if theirs is not None else "neither"
    else:
        faster = theirs.latency_us / mine.latency_us
        apart = mine.high_us < theirs.low_us or mine.low_us > theirs.high_us
        cell = cell.model_copy(update={"faster": faster})
        comparison = "same" if not apart else "faster" if faster > 1 else "slower"
    return cell.model_copy(update={"comparison": comparison})


def _paired(run: _Run, first: _Run, common: Sequence[str], rows: Sequence[Row], index: int) -> Paired:
    done = [key for key in common if key in run.results and key in first.results]
    both = [(_timing(first.results[key]), _timing(run.results[key])) for key in done]
    latencies = [math.log(a.latency_us / b.latency_us) for a, b in both if a is not None and b is not None]
    counts = Counter(row.cells[index].comparison for row in rows)
    return Paired(
        tasks=len(done),
        both_passed=len(latencies),
        ours=_geometric(latencies),
        speedups={
            baseline: _geometric([
                _log_speedup(run.results[key], baseline) - _log_speedup(first.results[key], baseline) for key in done
            ])
            for baseline in BASELINES
        },
        comparisons=dict(sorted(counts.items())),
    )  # fmt: skip


def _log_speedup(result: BenchResult, baseline: str) -> float:
    ratio = speedup(result, baseline)
    return 0.0 if ratio is None else math.log(ratio.value)


def _geometric(logs: Sequence[float]) -> Estimate:
    return exponential(estimate(np.array(logs, dtype=np.float64), lambda sample: sample.mean(axis=1)))
