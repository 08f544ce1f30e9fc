"""Reads the tasks of a suite: a folder in KernelBench's layout, a dataset of this project, a Hugging Face dataset, or
task files. No task is executed, and a bad task stays in the suite: its result has the reason."""

import fnmatch
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cuda_agent.core.bench import BenchManifest, SuiteTask
from cuda_agent.core.errors import StoreError, UsageError
from cuda_agent.core.lines import read_lines
from cuda_agent.core.records import RunManifest, Task
from cuda_agent.tasks.choose import kind_of
from cuda_agent.tasks.dataset.folder import measured_on, passing, read_tasks
from cuda_agent.tasks.dataset.importing import PUBLISHED, exported, read_exported, read_published
from cuda_agent.tasks.decontaminate.reading import TaskSource, read_hub, read_sources, read_table
from cuda_agent.tasks.records import CANDIDATES_FILE, DatasetTask

_LEVEL = re.compile(r"\blevel[ _-]?(\d+)\b", re.IGNORECASE)
#: The most bytes of a task's id, which names a folder.
_LONGEST = 100
#: A name with such an end is a missing file and no dataset on Hugging Face.
_OF_FILES = (".py", ".parquet", ".jsonl", ".gz", ".json")
#: All tasks, for a resumption of the run.
SUITE_FILE = "suite.jsonl"


@dataclass(frozen=True)
class Problem:
    """One task with its entry in the suite."""

    entry: SuiteTask
    task: Task


def read_suite(places: Sequence[str]) -> list[Problem]:
    """Returns all tasks of all places in order, each id once. Raises UsageError where there is none, StoreError where
    something can't be read."""
    found: list[Problem] = []
    for place in places:
        found += _read(place)
    if not found:
        raise _no_task(" ".join(places))
    return _unique(found)


def select(
    problems: Sequence[Problem], *, levels: Sequence[str] = (), ids: Sequence[str] = (), limit: int | None = None
) -> list[Problem]:
    """Returns the problems of the levels that an id or pattern names, at most `limit`. A number names the tasks whose
    file begins with it. Raises UsageError where nothing matches."""
    chosen = list(problems)
    if levels:
        known = sorted({p.entry.level for p in problems if p.entry.level is not None})
        unknown = [level for level in levels if level not in known]
        if unknown:
            has = f"it has {', '.join(known)}" if known else "its tasks have no level"
            raise UsageError(f"The suite has no level {', '.join(unknown)}", f"Choose others: {has}")
        chosen = [p for p in chosen if p.entry.level in levels]
    if ids:
        missing = [wanted for wanted in ids if not any(_is_named(p, wanted) for p in chosen)]
        if missing:
            raise UsageError(f"No task is named {', '.join(missing)}", "Give a file's name, its number or a pattern")
        chosen = [p for p in chosen if any(_is_named(p, wanted) for wanted in ids)]
    return chosen[:limit]


def mixed(problems: Sequence[Problem]) -> list[Problem]:
    """Returns the problems of all levels in even proportion, each level's in their order. Tasks that compile for long
    then run beside tasks that are timed for long, and a run that stops half-way has played every level."""
    levels: dict[str | None, list[Problem]] = {}
    for problem in problems:
        levels.setdefault(problem.entry.level, []).append(problem)
    placed = [((place + 0.5) / len(one), p) for one in levels.values() for place, p in enumerate(one)]
    return [problem for _, problem in sorted(placed, key=lambda pair: pair[0])]


def _is_named(problem: Problem, wanted: str) -> bool:
    entry = problem.entry
    if wanted.isdecimal():
        number = re.match(r"\d+", entry.name)
        return entry.id == wanted or (number is not None and int(number.group()) == int(wanted))
    return any(fnmatch.fnmatchcase(word, wanted) for word in (entry.id, entry.name, entry.key))


def _read(place: str) -> list[Problem]:
    path = Path(place).expanduser()
    if not path.exists():
        return _hub(place)
    if path.is_dir() and (path / CANDIDATES_FILE).exists():
        return [_composed(task) for task in passing(read_tasks(path), measured_on(path))]
    if path.is_dir() and exported(path):
        return [_composed(task) for task in read_exported(path)[0]]
    if path.suffix == ".parquet" and all(name in read_table(path).column_names for name in PUBLISHED):
        return [_composed(task) for task in read_published(path)]
    if path.suffix == ".jsonl" or path.name.endswith(".jsonl.gz"):
        return _lines(path)
    if path.is_file() and path.suffix not in (".py", ".parquet"):
        raise UsageError(f"{path} isn't a suite", "Give .py, .parquet, .jsonl or .jsonl.gz, or a folder of task files")
    try:
        found = read_sources(path)
    except UsageError:
        raise _no_task(path) from None
    sources = [s for s in found if not Path(s.name).name.startswith("_") and not _is_of_a_run(path, Path(s.name))]
    if not sources:
        raise _no_task(path)
    if all(source.name.endswith(".py") for source in sources):
        sources.sort(key=lambda source: _counted(source.name))
    return [_source(source) for source in sources]


def _no_task(place: object) -> UsageError:
    return UsageError(f"{place} has no task", "Give a folder of task files, or a dataset")


def _is_of_a_run(folder: Path, inside: Path) -> bool:
    """Returns whether a file belongs to the directory of a run or a benchmark."""
    manifests = (RunManifest.file_name, BenchManifest.file_name)
    return any((folder / parent / name).is_file() for parent in list(inside.parents)[:-1] for name in manifests)


def _counted(name: str) -> list[tuple[str, int]]:
    """Returns a sort key by which `level1/2_b` comes before `level1/10_a`."""
    return [(word, int(digits or 0)) for word, digits in re.findall(r"(\D*)(\d*)", name)]


def _hub(name: str) -> list[Problem]:
    if re.fullmatch(r"\w[\w.-]*/[\w.-]+", name) is None or name.endswith(_OF_FILES):
        raise UsageError(f"No such suite: {name}", "Give a folder, a file, or a dataset's name on Hugging Face")
    return [_source(source, origin=name) for source in read_hub(name)]


def _lines(path: Path) -> list[Problem]:
    """Returns composed tasks, or plain tasks."""
    try:
        return [_composed(task) for task in read_lines(path, DatasetTask)]
    except StoreError as error:
        try:
            return [problem_of(task) for task in read_lines(path, Task)]
        except StoreError:
            raise error from None


def _composed(composed: DatasetTask) -> Problem:
    """Returns a problem of level 1 (one operator), 2 (several) or 3 (a module of transformers)."""
    kind = kind_of(composed)
    level = {0: "3", 1: "1"}.get(kind, "2")
    return problem_of(composed.task, level=level, operators=composed.ops)


def _source(source: TaskSource, origin: str = "file") -> Problem:
    """Returns a problem named by a file's path in its folder, or by a dataset row's split and title."""
    where, _, title = source.name.rpartition(": ")
    found = _LEVEL.search(source.name.replace("_", " "))
    name = re.sub(r"\W+", "_", title or Path(where).name).strip("_") if title and where else Path(source.name).stem
    task = Task(name=name or "task", source=source.text, origin=origin)
    return problem_of(task, level=found.group(1) if found is not None else None)


def problem_of(task: Task, *, level: str | None = None, operators: Sequence[str] = ()) -> Problem:
    """Returns a task as part of a suite."""
    word = re.sub(r"[^\w.-]+", "_", unicodedata.normalize("NFC", task.name)).strip("._") or "task"
    name = f"level{level}-{word}" if level is not None else word
    entry = SuiteTask(
        id=name.encode()[:_LONGEST].decode(errors="ignore"),
        name=task.name,
        key=task.key,
        level=level,
        origin=task.origin,
        operators=tuple(operators) or task.operators,
    )
    return Problem(entry, task)


def _unique(problems: Iterable[Problem]) -> list[Problem]:
    """Makes ids different by a number, and drops repeated tasks of the same name."""
    taken: dict[str, str] = {}
    unique: list[Problem] = []
    for problem in problems:
        entry, number = problem.entry, 1
        name = entry.id
        while taken.get(name, entry.key) != entry.key:
            number += 1
            name = f"{entry.id}-{number}"
        if name in taken:
            continue
        taken[name] = entry.key
        unique.append(replace(problem, entry=entry.model_copy(update={"id": name})))
    return unique
