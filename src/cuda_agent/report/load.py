"""Reads what a command left in a folder, complete or not: a benchmark run, a run of `optimize`, a folder of such runs,
or a training run."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Literal

from cuda_agent.agent.best import BestRecord
from cuda_agent.core.bench import Audits, BenchManifest, BenchResult, Metrics, SuiteTask
from cuda_agent.core.errors import StoreError, UsageError
from cuda_agent.core.extraction import Extraction, WholeModel
from cuda_agent.core.inspection import Roofline
from cuda_agent.core.records import RunManifest, Task, Trajectory
from cuda_agent.report.rows import ReportRow
from cuda_agent.report.training import METRICS_FILE, Series, read_series

RESULTS_FILE = "results.jsonl"
SUITE_FILE = "suite.jsonl"
#: files of an entry in the registry of promoted kernels.
_PROMOTION, _PROMOTED_PAGE = "promotion.json", "report.html"
Kind = Literal["bench", "optimize", "runs", "training"]


@dataclass(frozen=True)
class Recorded:
    """The content of a folder. `manifest` is that of the benchmark, or of the first run. `notes` say what is missing or
    can't be read. `metrics` are the saved ones, or None. `series` are a training run's numbers by step. `whole` is the
    model that the tasks were extracted from, with the faster parts in it."""

    kind: Kind
    path: Path
    title: str
    rows: tuple[ReportRow, ...] = ()
    policy: str = ""
    suite: str = ""
    manifest: BenchManifest | RunManifest | None = None
    limits: Roofline | None = None
    metrics: Metrics | None = None
    audits: Audits = field(default_factory=Audits)
    series: tuple[Series, ...] = ()
    whole: WholeModel | None = None
    notes: tuple[str, ...] = ()

    @property
    def results(self) -> tuple[BenchResult, ...]:
        """The results of the tasks that have ended."""
        return tuple(row.result for row in self.rows if row.result is not None)


def load(path: Path) -> Recorded:
    """Reads a folder. Raises UsageError where it holds no run, StoreError where a record has another schema version or
    can't be read."""
    if not path.is_dir():
        cause = f"{path} is a file" if path.exists() else f"There is no folder {path}"
        raise UsageError(cause, "Give the folder that cuda-agent bench or optimize left")
    audits = Audits.find(path) or Audits()
    if (path / BenchManifest.file_name).is_file():
        return _bench(path, audits)
    if _is_run(path):
        return _runs("optimize", path, [path], audits)
    # `extract` proposes the folder `runs` in its own folder for the runs of a model's tasks.
    parent = path / "runs" if (path / Extraction.file_name).is_file() and (path / "runs").is_dir() else path
    inside = sorted(item for item in parent.iterdir() if item.is_dir() and _is_run(item))
    if inside:
        return _runs("runs", path, inside, audits)
    if (path / METRICS_FILE).is_file():
        return Recorded("training", path, path.absolute().name, series=read_series(path), audits=audits)
    if (path / _PROMOTION).is_file():
        raise UsageError(f"{path} is evidence of a promotion, not a run", f"Its page is there: {path / _PROMOTED_PAGE}")
    raise UsageError(f"{path} holds no run", "Give the folder that cuda-agent bench or optimize left")


def _bench(path: Path, audits: Audits) -> Recorded:
    manifest = BenchManifest.read(path)
    notes: list[str] = []
    results = {result.task.id: result for result in _results(path / RESULTS_FILE, notes)}
    known = {task.id for task in manifest.tasks}
    strays = [result.task for name, result in results.items() if name not in known]
    sources = _sources(path / SUITE_FILE)
    rows = []
    for task in (*manifest.tasks, *strays):
        found = results.get(task.id)
        if found is not None:
            # Only the result holds the work that was counted while the task ran.
            counted = {"roofline": found.task.roofline or task.roofline, "work": found.task.work or task.work}
            task = task.model_copy(update=counted)
        rows.append(ReportRow(task, found, _inside(path, found), source=sources.get(task.key, "")))
    waiting = sum(row.result is None for row in rows)
    if waiting:
        notes.append(
            f"The run hasn't ended: {waiting} of {len(rows)} tasks have no result yet; numbers are over the rest."
        )
    return Recorded(
        "bench",
        path,
        f"{manifest.policy} on {PurePath(manifest.suite).name or manifest.suite}",
        rows=tuple(rows),
        policy=manifest.policy,
        suite=manifest.suite,
        manifest=manifest,
        limits=manifest.limits,
        metrics=_metrics(path, len(results)),
        audits=audits,
        series=read_series(path),
        notes=tuple(notes),
    )


def _sources(path: Path) -> dict[str, str]:
    """Returns task key -> reference from the suite's file. Lines that can't be read are left out."""
    found: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in path.read_text(errors="replace").split("\n"):
            with contextlib.suppress(StoreError):
                task = Task.from_json(line)
                found[task.key] = task.source
    return found


def _results(path: Path, notes: list[str]) -> Iterator[BenchResult]:
    """Yields the result in each line. A damaged line, such as one that a kill cut short, is left out and noted. Raises
    StoreError when the file can't be read."""
    try:
        lines = path.read_text(errors="replace").split("\n")
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreError(f"Can't read {path}: {error.strerror}", "Check its permissions") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            json.loads(line)
        except ValueError:
            notes.append(f"Line {number} of {path.name} is cut short or damaged, and left out.")
            continue
        yield BenchResult.from_json(line, where=f"{path}, line {number}")


def _metrics(path: Path, done: int) -> Metrics | None:
    """Returns the saved metrics, or None where they can't be read or are of another number of results."""
    try:
        metrics = Metrics.read(path)
    except StoreError:
        return None
    return metrics if metrics.done == done else None


def _inside(path: Path, result: BenchResult | None) -> Path | None:
    """Returns the run's directory, or None where it is missing or outside the benchmark's directory."""
    if result is None or result.directory is None:
        return None
    found = (path / result.directory).resolve()
    return found if found.is_relative_to(path.resolve()) and found.is_dir() else None


def _is_run(path: Path) -> bool:
    return (path / Task.file_name).is_file() and (path / RunManifest.file_name).is_file()


def _runs(kind: Kind, path: Path, directories: list[Path], audits: Audits) -> Recorded:
    rows: list[ReportRow] = []
    notes: list[str] = []
    first: RunManifest | None = None
    for directory in directories:
        try:
            row, manifest = _run(directory, directory.absolute().name)
        except StoreError as error:
            if kind == "optimize":
                raise
            notes.append(str(error))
            continue
        rows.append(row)
        first = first or manifest
        if row.result is not None and row.result.outcome == "unfinished":
            notes.append(f"{row.task.name} hasn't ended. It may still run; otherwise: cuda-agent resume {directory}")
    policies = sorted({str(row.policy) for row in rows if row.policy})
    if first is not None and kind == "runs":
        # These two are the first run's alone.
        first = first.model_copy(update={"command": (), "resumed": ()})
    title = rows[0].task.name if kind == "optimize" and rows else path.absolute().name
    # `apply` leaves the record beside the extraction and in each run that it used.
    whole = next(filter(None, map(WholeModel.find, [path, *directories])), None)
    return Recorded(
        kind,
        path,
        title,
        rows=tuple(rows),
        policy=", ".join(policies),
        manifest=first,
        audits=audits,
        series=read_series(path),
        whole=whole,
        notes=tuple(notes),
    )


def _run(directory: Path, name: str) -> tuple[ReportRow, RunManifest]:
    task, manifest = Task.read(directory), RunManifest.read(directory)
    listed = SuiteTask(id=name, name=task.name, key=task.key, origin=task.origin, operators=task.operators)
    policy = str(manifest.configuration.get("policy", ""))
    return ReportRow(listed, _ending(directory, listed), directory, policy), manifest


def _ending(directory: Path, task: SuiteTask) -> BenchResult:
    """Returns the result in the trajectory, or the best candidate so far of a run that hasn't ended."""
    run = Trajectory.find(directory)
    if run is not None:
        return BenchResult.of(task, run, turns=len(run.turns))
    best = BestRecord.find(directory)
    held = best.evaluation if best is not None else None
    return BenchResult(task=task, outcome="unfinished", message="the run hasn't ended", evaluation=held)
