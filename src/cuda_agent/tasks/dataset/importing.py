"""The published dataset's format: its splits, and reading it as candidates."""

import ast
import json
import re
from pathlib import Path
from typing import Any

from cuda_agent.core.errors import StoreError, UsageError
from cuda_agent.core.hashing import digest_text
from cuda_agent.core.lines import write_lines
from cuda_agent.core.records import Task
from cuda_agent.tasks.decontaminate.reading import read_table
from cuda_agent.tasks.records import CANDIDATES_FILE, Cost, DatasetTask, Measurement

#: Percent of the operator graphs.
SPLITS = {"train": 90.0, "validation": 5.0, "test": 5.0}
PUBLISHED = ("ops", "data_source", "code")
_LONGEST = 60
_COST = ("flops", "bytes", "predicted_us")
_MEASURED = ("eager_us", "eager_low_us", "eager_high_us", "peak_memory_bytes", "graph_hash")


def split_of(graph: str) -> str:
    """Returns the split of all tasks with this hash of their operator graph, so that no graph is in two splits. It
    doesn't depend on other tasks."""
    place = int(digest_text("split", graph)[:12], 16) / 16**12 * 100
    for name, percent in SPLITS.items():
        if place < percent:
            return name
        place -= percent
    return next(iter(SPLITS))


def read_published(path: Path) -> list[DatasetTask]:
    """Returns the tasks of a parquet file with the columns `ops`, `data_source` and `code`, in its order. Their code
    isn't executed. Raises UsageError, StoreError."""
    if not path.is_file():
        raise UsageError(f"No such file: {path}", "Give a parquet file")
    table = read_table(path)
    missing = [name for name in PUBLISHED if name not in table.column_names]
    if missing:
        raise StoreError(f"{path} has no column {', '.join(missing)}", f"It needs {', '.join(PUBLISHED)}")
    if table.num_rows == 0:
        raise UsageError(f"{path} has no task", "Give another file")
    return [_task(row, number, path) for number, row in enumerate(table.to_pylist())]


def write_candidates(folder: Path, tasks: list[DatasetTask]) -> Path:
    """Writes `candidates.jsonl` in a new folder. Raises UsageError where the file exists, StoreError."""
    path = folder / CANDIDATES_FILE
    if path.exists():
        raise UsageError(f"{path} exists", "Import into another folder")
    write_lines(path, tasks)
    return path


def _task(row: dict[str, Any], number: int, path: Path) -> DatasetTask:
    code = row["code"]
    if not isinstance(code, str) or not code.strip():
        raise StoreError(f"{path}, row {number}: `code` is empty", "Restore the file")
    ops = _operators(row["ops"])
    words = "_".join(re.sub(r"\W+", "_", op.rsplit(".", 1)[-1]).strip("_").lower() for op in ops)
    name = row.get("name") or f"{number:05d}_{words}"[:_LONGEST].rstrip("_")
    task = Task(name=name, source=code, origin=str(row["data_source"]), operators=ops, split=row.get("split"))
    return DatasetTask(
        task=task,
        ops=ops,
        composer=str(row.get("composer") or "imported"),
        number=int(row["number"]) if row.get("number") is not None else number,
        cost=Cost(**{name: row[name] for name in _COST}) if all(row.get(name) is not None for name in _COST) else None,
    )


def read_exported(folder: Path) -> tuple[list[DatasetTask], dict[str, Measurement]]:
    """Reads the files of `export`. Returns the tasks of all splits in order of their numbers, and their measurements by
    key. Raises StoreError."""
    tasks: list[DatasetTask] = []
    measured: dict[str, Measurement] = {}
    for path in exported(folder):
        for task, row in zip(read_published(path), read_table(path).to_pylist(), strict=True):
            tasks.append(task)
            fields = {name: row.get(name) for name in _MEASURED}
            operators = tuple(json.loads(row.get("graph_operators") or "[]"))
            measured[task.task.key] = Measurement(
                task_key=task.task.key, finding=None, graph_operators=operators, **fields
            )
    return sorted(tasks, key=lambda task: (task.composer, task.number)), measured


def exported(folder: Path) -> list[Path]:
    """Returns the parquet files of an exported dataset."""
    return [path for split in SPLITS if (path := folder / f"{split}.parquet").exists()]


def is_exported(folder: Path) -> bool:
    """Returns whether `export` wrote the folder, so that it isn't a folder of the stages."""
    return not (folder / CANDIDATES_FILE).exists() and bool(exported(folder))


def _operators(value: Any) -> tuple[str, ...]:
    """Returns the operators from a list, or from a text that contains one: JSON, Python, or words between commas."""
    if isinstance(value, list | tuple):
        return tuple(map(str, value))
    text = str(value or "").strip()
    for parse in (json.loads, ast.literal_eval):
        try:
            found = parse(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(found, list | tuple):
            return tuple(map(str, found))
        return (str(found),)
    return tuple(word.strip() for word in text.split(",") if word.strip())
