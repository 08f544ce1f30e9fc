"""Reads the sources of evaluation tasks: folders, parquet files, saved datasets, Hugging Face.

No source is executed. An unreadable source is an error, because a source that isn't compared would pass.
"""

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuda_agent.core.errors import StoreError, UsageError
from cuda_agent.core.lines import read_lines
from cuda_agent.tasks.records import DatasetTask

#: The column names of a task's source, the likeliest first.
_COLUMNS = ("code", "source", "pytorch_code", "pytorch_module", "reference", "reference_code", "problem", "task")
_NOT_TASKS = ("__init__.py", "setup.py", "conftest.py")


@dataclass(frozen=True)
class TaskSource:
    """The source of a task. `name` is for people; it is the path of a file in its folder."""

    name: str
    text: str


def read_sources(path: Path) -> list[TaskSource]:
    """Returns all tasks at `path`, a folder or a file (`.py`, `.parquet`, `.jsonl` of candidates). Raises UsageError
    where there is none, StoreError where something can't be read."""
    if path.is_dir():
        # `datasets` saved several splits in folders, or one split.
        saved = any((path / f"dataset_{name}.json").exists() for name in ("dict", "info"))
        found = _saved(path) if saved else _folder(path)
    elif path.is_file():
        found = _file(path)
    else:
        raise UsageError(f"No such reference: {path}", "Give a folder, a file, or a dataset's name on Hugging Face")
    if not found:
        raise _no_task(path)
    return found


def read_hub(name: str) -> list[TaskSource]:
    """Returns all tasks of all splits of a dataset on Hugging Face. Raises StoreError where it can't be read."""
    try:
        import datasets
    except ImportError:
        raise StoreError(
            f"{name} isn't a path, and reading it from Hugging Face needs the package datasets",
            "pip install datasets, or give a path",
        ) from None
    try:
        loaded = datasets.load_dataset(name)
    except Exception as error:  # noqa: BLE001 - the boundary to the network and to another's data
        line = " ".join(str(error).split())[:200]
        raise StoreError(
            f"{name} isn't a path, and can't be read from Hugging Face: {type(error).__name__}: {line}",
            "Check the name, or download it elsewhere and give its path or a fingerprint file",
        ) from None
    found = [source for split in sorted(loaded) for source in _rows(loaded[split].data.table, f"{name}/{split}")]
    if not found:
        raise _no_task(name)
    return found


def _no_task(place: object) -> UsageError:
    return UsageError(f"{place} has no evaluation task, so nothing would be compared", "Give a place that has some")


def _folder(path: Path) -> list[TaskSource]:
    """Returns the tasks of every Python file and every parquet file in a folder."""
    found: list[TaskSource] = []
    for file in sorted(path.rglob("*")):
        inside = file.relative_to(path)
        if any(part.startswith(".") or part == "__pycache__" for part in inside.parts) or not file.is_file():
            continue
        if file.suffix == ".parquet":
            found += _rows(read_table(file), file.name)
        elif file.suffix == ".py" and file.name not in _NOT_TASKS:
            found.append(TaskSource(str(inside), _text(file)))
    return found


def _file(path: Path) -> list[TaskSource]:
    if path.suffix == ".py":
        return [TaskSource(path.name, _text(path))]
    if path.suffix == ".parquet":
        return _rows(read_table(path), path.name)
    if path.suffix == ".jsonl":
        return [TaskSource(item.task.name, item.task.source) for item in read_lines(path, DatasetTask)]
    raise UsageError(f"{path} isn't an evaluation set", "Give .py, .parquet, candidates.jsonl or a fingerprint file")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise StoreError(f"Can't read {path}: {error.strerror}", "Check its permissions") from None
    except UnicodeDecodeError as error:
        raise StoreError(f"{path} is not UTF-8 text (byte {error.start})", "Correct it, or remove it") from None


def arrow() -> Any:
    """Returns pyarrow, with parquet and its streams. Raises StoreError where it isn't installed."""
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError:
        raise StoreError("Parquet needs the package pyarrow", "pip install 'cuda-agent[tasks]'") from None
    return pyarrow


def read_table(path: Path) -> Any:
    """Returns the table of a parquet file, or of a file that `datasets` saved. Raises StoreError."""
    pyarrow = arrow()
    try:
        if path.suffix != ".arrow":
            return pyarrow.parquet.read_table(path)
        with pyarrow.memory_map(str(path)) as stream:
            return pyarrow.ipc.open_stream(stream).read_all()
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        line = " ".join(str(error).split())[:200]
        raise StoreError(
            f"Can't read {path}: {line}", f"Check that it is a complete {path.suffix[1:] or 'parquet'} file"
        ) from None


def _saved(path: Path) -> list[TaskSource]:
    files = [file for file in sorted(path.rglob("*.arrow")) if not file.name.startswith("cache-")]
    return [source for file in files for source in _rows(read_table(file), str(file.relative_to(path).parent))]


def _rows(table: Any, where: str) -> list[TaskSource]:
    if table.num_rows == 0:
        return []
    names = list(table.column_names)
    likely = [name for wanted in _COLUMNS for name in names if name.lower() == wanted]
    for column in [*likely, *(name for name in names if name not in likely)]:
        values = table.column(column).to_pylist()
        if _are_tasks(values):
            titles = _titles(table, names, column)
            return [TaskSource(f"{where}: {title}", text) for title, text in zip(titles, values, strict=True)]
    raise StoreError(
        f"{where}: no column has Python tasks (it has {', '.join(names)})",
        "Give a file with the tasks' sources in a column, such as `code`",
    )


def _are_tasks(values: Iterable[Any]) -> bool:
    """Returns whether all values are Python, and at least one defines a class or a function."""
    defines = False
    for value in values:
        if not isinstance(value, str):
            return False
        try:
            tree = ast.parse(value)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False
        defines = defines or any(isinstance(node, ast.ClassDef | ast.FunctionDef) for node in tree.body)
    return defines


def _titles(table: Any, names: list[str], column: str) -> list[str]:
    for wanted in ("name", "problem_name", "title", "key", "id", "problem_id", "uuid"):
        if wanted in names and wanted != column:
            return [str(value) for value in table.column(wanted).to_pylist()]
    return [f"row {row}" for row in range(table.num_rows)]
