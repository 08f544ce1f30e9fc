"""A whole build: from recorded measurements bit for bit, however often it was killed; and with real ones on the CPU."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from cuda_agent.core.enums import Device
from cuda_agent.core.errors import TaskError, UsageError
from cuda_agent.core.lines import append
from cuda_agent.core.stack import Stack
from cuda_agent.tasks.build import EXPORT_FOLDER, BuildOptions, build, compose_candidates
from cuda_agent.tasks.compose.run import SEEDS_FILE
from cuda_agent.tasks.crawl import catalogue
from cuda_agent.tasks.decontaminate.references import write_fingerprints
from cuda_agent.tasks.filter.measurements import Journal, read_all
from cuda_agent.tasks.filter.run import read_candidates
from cuda_agent.tasks.records import Measurement, Rule, TaskFinding
from task_candidates import candidate

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

STACK = Stack(torch="2.11", python="3.12", cpu="x", cpu_cores=16, cuda_agent="0.1.0")
_SMALL = {"window_ms": (0.001, 0.05), "memory_gb": 0.01}


def options(folder: Path, **changes: object) -> BuildOptions:
    """With the seeds of torch that need no trial, and an evaluation set of one task."""
    folder.mkdir()
    append(folder / SEEDS_FILE, [entry.seed for entry in catalogue.read()])
    held = folder.parent / "held.json"
    if not held.exists():
        source = folder.parent / "held.py"
        source.write_text(candidate("held", "return torch.sigmoid(self.linear(x)).cumsum(1)").task.source)
        write_fingerprints(held, str(source), None, lambda _text: None)
    values = {"folder": folder, "against": [str(held)], "tasks": 20, "compose": _SMALL, **changes}
    return BuildOptions.parse(values)


def record(folder: Path, count: int) -> str:
    """Measurements as a GPU might have made them: every fourth task breaks a rule. The stack's name."""
    journal = Journal(folder, STACK)
    for task in read_candidates(folder):
        broken = TaskFinding(rule=Rule.EAGER_TIME, detail="too short") if task.number % 4 == 0 else None
        journal.add(
            Measurement(
                task_key=task.task.key,
                finding=broken,
                eager_us=2000.0 + task.number,
                eager_low_us=1999.0,
                eager_high_us=2300.0,
                graph_hash=f"{task.number:064x}",
            )
        )
    assert len(journal.measured) <= count
    return journal.path.stem.removeprefix("measurements-")


def silent(_phase: str, _text: str) -> None:
    pass


def exported(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / EXPORT_FOLDER).iterdir())}


def test_recorded_measurements_give_the_same_set(tmp_path: Path) -> None:
    first = options(tmp_path / "first")
    compose_candidates(first, 70, lambda _text: None)
    stack = record(first.folder, 70)
    made = build(first, Device.CPU, silent, recorded=stack)
    assert sum(made.splits.values()) == 20 and made.candidates > 23
    # As after a kill: some candidates, all that was measured, no comparison.
    second = options(tmp_path / "second")
    compose_candidates(second, 11, lambda _text: None)
    (recorded,) = read_all(first.folder)
    path = tmp_path / "recorded.jsonl.gz"
    path.write_bytes(gzip.compress(recorded.path.read_bytes() + b'{"task_'))
    assert build(second, Device.CPU, silent, recorded=str(path)).candidates == made.candidates
    assert exported(second.folder) == exported(first.folder)
    assert build(second, Device.CPU, silent, recorded=stack).splits == made.splits
    assert exported(second.folder) == exported(first.folder)
    # What is given counts, whatever the folder holds.
    for name in ("nowhere.jsonl", ""):
        with pytest.raises(UsageError, match="neither a file nor a stack"):
            build(second, Device.CPU, silent, recorded=name)
    lines = recorded.path.read_text().replace('"eager_us":20', '"eager_us":21')
    path.write_text(lines)
    build(second, Device.CPU, silent, recorded=str(path))
    assert exported(second.folder) != exported(first.folder)


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    few = options(tmp_path / "few", most_candidates=21)
    compose_candidates(few, 21, lambda _text: None)
    stack = record(few.folder, 21)
    with pytest.raises(TaskError, match="too few for 20"):
        build(few, Device.CPU, silent, recorded=stack)
    with pytest.raises(UsageError, match="no recorded measurement"):
        build(few.model_copy(update={"tasks": 30, "most_candidates": 40}), Device.CPU, silent, recorded=stack)
    some = build(
        few.model_copy(update={"tasks": 12, "candidates": 24, "most_candidates": 40}),
        Device.CPU,
        silent,
        recorded=stack,
    )
    assert some.unmeasured == 3 and sum(some.splits.values()) == 12
    with pytest.raises(UsageError, match="built with another seed"):
        build(few.model_copy(update={"seed": 1}), Device.CPU, silent, recorded=stack)


def test_a_small_build_on_the_cpu(tmp_path: Path) -> None:
    filtering = {"workers": 1, "window_ms": (1e-4, 1e6), "host_memory_mib": 3000}
    wanted = options(tmp_path / "made", tasks=2, filter=filtering)
    made = build(wanted, Device.CPU, silent)
    assert sum(made.splits.values()) == 2
    assert (wanted.folder / "funnel.json").exists()
    assert any(name.endswith(".parquet") for name in exported(wanted.folder))
