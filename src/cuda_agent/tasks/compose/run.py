"""Composes into a dataset's folder: goes on where its file ends, and refuses what would mix two streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Protocol

from pydantic import Field

from cuda_agent.core.errors import UsageError
from cuda_agent.core.hashing import digest_text
from cuda_agent.core.record import StoredRecord
from cuda_agent.tasks.compose.sizing import Target
from cuda_agent.tasks.records import DatasetTask, Seed
from cuda_agent.tasks.store import CANDIDATES_FILE, append, only_one, read_lines

SEEDS_FILE = "seeds.jsonl"
#: tasks that are written to disk at once.
_BATCH = 20


class ComposeSettings(StoredRecord):
    """What a folder's candidates were composed from. `seeds_digest`: of the seeds, in order. `library_versions`: those
    that decide shapes. `runs_with`: versions on the machine that the tasks are for, where they are other ones."""

    file_name = "compose.json"
    composer: str = "builtin"
    seed: int = 0
    target: Target = Target()
    seeds_digest: str = ""
    library_versions: dict[str, str] = Field(default_factory=dict)
    runs_with: dict[str, str] = Field(default_factory=dict)
    model: str | None = None


def library_versions(seeds: Sequence[Seed]) -> dict[str, str]:
    """Versions of the libraries that the seeds come from, without what only names a build."""
    found: dict[str, str] = {}
    for library in sorted({"torch", *(seed.library for seed in seeds)}):
        # What isn't installed gives no task, and says so there.
        with suppress(metadata.PackageNotFoundError):
            found[library] = metadata.version(library).split("+")[0]
    return found


class Skipped(Exception):
    """A composer has no task for a number, and the reason."""


class Composer(Protocol):
    """`compose(number)` raises Skipped when there is no task for that number. It is told the tasks that stand, in
    order, before it composes the next."""

    name: str

    def compose(self, number: int) -> DatasetTask: ...

    def tell(self, task: DatasetTask) -> None: ...


@dataclass(frozen=True)
class Composed:
    """How a folder stands: tasks that it held, those that were added, and the numbers that gave none."""

    found: int
    added: int
    skipped: dict[int, str]


def read_seeds(folder: Path) -> tuple[Seed, ...]:
    """Raises UsageError when the folder has none."""
    path = folder / SEEDS_FILE
    if not path.exists():
        raise UsageError(f"{folder} holds no seeds", f"Run: cuda-agent tasks crawl {folder}")
    return tuple(read_lines(path, Seed))


def runs_with(seeds: Sequence[Seed], versions: Mapping[str, str]) -> tuple[Seed, ...]:
    """Those that run with these versions of the libraries. Raises UsageError where one is no version."""
    parts = {library: _parts(version) for library, version in versions.items()}
    return tuple(
        seed
        for seed in seeds
        if all(library not in parts or parts[library] >= _parts(oldest) for library, oldest in seed.needs.items())
    )


def _parts(version: str) -> tuple[int, ...]:
    words = version.split("+")[0].split(".")
    if not all(word.isdecimal() for word in words):
        raise UsageError(f"{version!r} is no version", "Give it as in 2.11")
    return tuple(int(word) for word in words)


def digest_of(seeds: tuple[Seed, ...]) -> str:
    """Of all that the seeds say."""
    return digest_text(*(seed.model_dump_json() for seed in seeds))


def settle(folder: Path, settings: ComposeSettings) -> None:
    """Note what the folder is composed from. Raises UsageError when it was begun from something else."""
    path = folder / settings.file_name
    if path.exists():
        begun = ComposeSettings.read(folder)
        for field in ComposeSettings.model_fields:
            if getattr(begun, field) != getattr(settings, field):
                raise UsageError(
                    f"{folder} was begun with another {field.replace('_', ' ')}",
                    "Compose into another folder, or with the same settings and seeds",
                )
    else:
        settings.write(folder)


def compose(folder: Path, composer: Composer, count: int, say: Callable[[str], None]) -> Composed:
    """Candidates with the numbers below `count` that the folder doesn't hold yet. Raises TaskError, StoreError."""
    with only_one(folder, "composer"):
        return _compose(folder, composer, count, say)


def _compose(folder: Path, composer: Composer, count: int, say: Callable[[str], None]) -> Composed:
    path = folder / CANDIDATES_FILE
    known = list(read_lines(path, DatasetTask)) if path.exists() else []
    for task in known:
        composer.tell(task)
    first = known[-1].number + 1 if known else 0
    waiting: list[DatasetTask] = []
    skipped: dict[int, str] = {}
    added = 0
    try:
        for number in range(first, count):
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
