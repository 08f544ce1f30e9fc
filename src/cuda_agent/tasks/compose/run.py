"""Composes into a dataset's folder. It continues where the folder's file ends, and refuses to mix two streams."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Protocol

from pydantic import Field

from cuda_agent.core.errors import UsageError
from cuda_agent.core.files import locked
from cuda_agent.core.hashing import digest_text
from cuda_agent.core.lines import append, read_lines
from cuda_agent.core.record import StoredRecord
from cuda_agent.core.records import Task
from cuda_agent.tasks.compose.rates import rates_for
from cuda_agent.tasks.compose.sizing import Target
from cuda_agent.tasks.options import ComposeOptions
from cuda_agent.tasks.records import CANDIDATES_FILE, DatasetTask, Seed

SEEDS_FILE = "seeds.jsonl"
#: The number of tasks that are written to disk at once.
_BATCH = 20


class ComposeSettings(StoredRecord):
    """The settings of a folder's candidates. `seeds_digest` is that of the seeds in order. `library_versions` are those
    that determine shapes. `runs_with` are the versions on the tasks' target machine, where they differ."""

    file_name = "compose.json"
    composer: str = "builtin"
    seed: int = 0
    target: Target = Target()
    seeds_digest: str = ""
    library_versions: dict[str, str] = Field(default_factory=dict)
    runs_with: dict[str, str] = Field(default_factory=dict)
    model: str | None = None


def library_versions(seeds: Sequence[Seed]) -> dict[str, str]:
    """Returns the versions of the seeds' libraries, without build suffixes."""
    found: dict[str, str] = {}
    for library in sorted({"torch", *(seed.library for seed in seeds)}):
        # A seed of a missing library makes no task, and its error says so.
        with suppress(metadata.PackageNotFoundError):
            found[library] = metadata.version(library).split("+")[0]
    return found


class Skipped(Exception):
    """A composer has no task for a number, with the reason."""


class Composer(Protocol):
    """Composes tasks by number. `compose(number)` raises Skipped when there is no task for that number. `tell` gives it
    the tasks of the dataset in order, before it composes the next."""

    name: str

    def compose(self, number: int) -> DatasetTask: ...

    def tell(self, task: DatasetTask) -> None: ...


def dataset_task(composer: str, number: int, seeds: Sequence[Seed], source: str) -> DatasetTask:
    """Returns a composer's task of these seeds. Its name has their operators."""
    operators = tuple(seed.operator for seed in seeds)
    name = f"{number:05d}_{'_'.join(operators).replace(' ', '_')}"
    task = Task(name=name, source=source, origin=f"{seeds[0].library}#{len(seeds)}", operators=operators)
    return DatasetTask(task=task, ops=tuple(seed.name for seed in seeds), composer=composer, number=number)


@dataclass(frozen=True)
class Composed:
    """The state of a folder: the tasks that it had, those that were added, and the numbers without a task."""

    found: int
    added: int
    skipped: dict[int, str]


def read_seeds(folder: Path) -> tuple[Seed, ...]:
    """Returns the seeds. Raises UsageError when the folder has none."""
    path = folder / SEEDS_FILE
    if not path.exists():
        raise UsageError(f"{folder} has no seeds", f"Run: cuda-agent tasks crawl {folder}")
    return tuple(read_lines(path, Seed))


def runs_with(seeds: Sequence[Seed], versions: Mapping[str, str]) -> tuple[Seed, ...]:
    """Returns the seeds that run with these versions of the libraries. Raises UsageError where a version is invalid."""
    parts = {library: _parts(version) for library, version in versions.items()}
    return tuple(
        seed
        for seed in seeds
        if all(library not in parts or parts[library] >= _parts(oldest) for library, oldest in seed.needs.items())
    )


def _parts(version: str) -> tuple[int, ...]:
    words = version.split("+")[0].split(".")
    if not all(word.isdecimal() for word in words):
        raise UsageError(f"{version!r} isn't a version", "Give one such as 2.11")
    return tuple(int(word) for word in words)


def digest_of(seeds: tuple[Seed, ...]) -> str:
    return digest_text(*(seed.model_dump_json() for seed in seeds))


def settle(folder: Path, settings: ComposeSettings) -> None:
    """Writes the folder's settings. Raises UsageError when the folder has others."""
    begun = ComposeSettings.find(folder)
    if begun is None:
        settings.write(folder)
        return
    for field in ComposeSettings.model_fields:
        if getattr(begun, field) != getattr(settings, field):
            raise UsageError(
                f"{folder} was composed with another {field.replace('_', ' ')}",
                "Compose into another folder, or with the same settings and seeds",
            )


def compose_by(
    folder: Path,
    options: ComposeOptions,
    seed: int,
    count: int,
    make: Callable[[tuple[Seed, ...], Target], Composer],
    say: Callable[[str], None],
    *,
    model: str | None = None,
) -> Composed:
    """Composes by a configuration, with the composer that `make` gives for the seeds and the target. `model` is the
    name of its language model. Raises UsageError where the folder has no seeds or other settings, TaskError,
    StoreError."""
    seeds = runs_with(read_seeds(folder), options.runs_with)
    low, high = options.window_ms
    target = Target(low_ms=low, high_ms=high, memory_gb=options.memory_gb, rates=rates_for(options.stack))
    composer = make(seeds, target)
    settings = ComposeSettings(
        composer=composer.name,
        seed=seed,
        target=target,
        seeds_digest=digest_of(seeds),
        library_versions=library_versions(seeds),
        runs_with=options.runs_with,
        model=model,
    )
    settle(folder, settings)
    return compose(folder, composer, count, say)


def compose(folder: Path, composer: Composer, count: int, say: Callable[[str], None]) -> Composed:
    """Composes the candidates with numbers below `count` that the folder doesn't have. Raises TaskError, StoreError."""
    path = folder / CANDIDATES_FILE
    waiting: list[DatasetTask] = []
    skipped: dict[int, str] = {}
    added = 0
    with locked(folder / ".composer.lock"):
        known = read_lines(path, DatasetTask, optional=True)
        for task in known:
            composer.tell(task)
        try:
            for number in range(known[-1].number + 1 if known else 0, count):
                try:
                    task = composer.compose(number)
                except Skipped as error:
                    skipped[number] = str(error)
                    continue
                composer.tell(task)
                waiting.append(task)
                added += 1
                if len(waiting) >= _BATCH:
                    append(path, waiting)
                    waiting = []
                    say(f"{number + 1} of {count}")
        finally:
            append(path, waiting)
    return Composed(len(known), added, skipped)
