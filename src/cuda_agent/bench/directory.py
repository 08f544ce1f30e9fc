"""The folder of a benchmark run: bench.json and suite.jsonl (what it is), results.jsonl (a line a task, as soon as it
is known), turns.jsonl (who had the device when), metrics.json, tasks/ID (the run directories, as `optimize` leaves
them)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from cuda_agent.agent.storage.rundir import RunDirectory, current_commit, now
from cuda_agent.bench.options import BenchOptions
from cuda_agent.bench.suite import SUITE_FILE, Problem
from cuda_agent.core.bench import BenchManifest, BenchResult, Metrics
from cuda_agent.core.errors import StoreError, UsageError
from cuda_agent.core.files import write_durably
from cuda_agent.core.inspection import Roofline
from cuda_agent.core.records import Resumption, Task
from cuda_agent.core.stack import Stack, read_stack
from cuda_agent.tasks.store import append, read_lines

RESULTS_FILE = "results.jsonl"
TURNS_FILE = "turns.jsonl"


class BenchDirectory:
    """Paths, and what is written when."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    @property
    def turns_log(self) -> Path:
        """A line a turn on the device: see `lane.LaneServer`."""
        return self.path / TURNS_FILE

    @property
    def was_begun(self) -> bool:
        return (self.path / BenchManifest.file_name).is_file()

    def prepare(self) -> None:
        """A folder in which nothing stands but what a run left that had no manifest yet. Raises UsageError,
        StoreError."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            strange = {item.name for item in self.path.iterdir()} - {"lock", SUITE_FILE}
        except FileExistsError:
            raise UsageError(f"{self.path} is a file", "Choose another --out") from None
        except OSError as error:
            raise StoreError(f"Can't make {self.path}: {error.strerror}", "Choose another --out") from None
        if self.was_begun:
            raise UsageError(f"{self.path} holds a benchmark run", "Go on with it: --resume; or choose another --out")
        if any(not name.startswith(".") for name in strange):
            raise UsageError(f"{self.path} isn't empty", "Choose another --out")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run for this process. Raises StoreError while another holds it."""
        with RunDirectory(self.path).lock():
            yield

    def write_start(
        self, suite: str, problems: Sequence[Problem], options: BenchOptions, policy: str, command: tuple[str, ...]
    ) -> BenchManifest:
        """The tasks with their sources, then the manifest: from there on the run can be taken up. Raises StoreError."""
        lines = "".join(problem.task.model_dump_json() + "\n" for problem in problems)
        write_durably(self.path / SUITE_FILE, lines)
        stack = read_stack()
        manifest = BenchManifest(
            command=command,
            suite=suite,
            tasks=tuple(problem.entry for problem in problems),
            policy=policy,
            configuration=options.model_dump(mode="json"),
            version=stack.cuda_agent,
            commit=current_commit(),
            stack=stack,
            started=now(),
            peak_bytes={p.entry.id: p.peak_bytes for p in problems if p.peak_bytes is not None},
        )
        manifest.write(self.path)
        return manifest

    def read_start(self) -> tuple[BenchManifest, list[Problem], BenchOptions]:
        """What `write_start` wrote. Raises UsageError where no run was begun, StoreError."""
        if not self.was_begun:
            raise UsageError(f"{self.path} holds no benchmark run", "Begin one: cuda-agent bench SUITE --out DIR")
        manifest = BenchManifest.read(self.path)
        tasks = read_lines(self.path / SUITE_FILE, Task)
        if [task.key for task in tasks] != [entry.key for entry in manifest.tasks]:
            raise StoreError(f"{self.path / SUITE_FILE} isn't what the run was begun with", "Restore the file")
        peaks = manifest.peak_bytes
        pairs = zip(manifest.tasks, tasks, strict=True)
        problems = [Problem(entry, task, peaks.get(entry.id)) for entry, task in pairs]
        try:
            return manifest, problems, BenchOptions.model_validate(manifest.configuration)
        except ValidationError as error:
            first = error.errors()[0]
            said = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            path = self.path / BenchManifest.file_name
            raise StoreError(
                f"The options in {path} can't be read: {said}", "Use the cuda-agent that wrote it"
            ) from None

    def write_resumption(self, manifest: BenchManifest, done: int) -> tuple[BenchManifest, list[str]]:
        """Notes that it goes on, after `done` tasks; what is another stack than it was begun on. Raises StoreError."""
        here = read_stack()
        changes = [*stack_differences(manifest.stack, here).values(), *machine_differences(manifest.stack, here)]
        if current_commit() != manifest.commit:
            changes.append(f"commit {current_commit()}, was {manifest.commit}")
        entry = Resumption(started=now(), turns=done, changes=tuple(changes))
        manifest = manifest.model_copy(update={"resumed": (*manifest.resumed, entry)})
        manifest.write(self.path)
        return manifest, changes

    def write_limits(self, manifest: BenchManifest, limits: Roofline | None) -> BenchManifest:
        """What the device reaches. Raises StoreError."""
        if limits is None or manifest.limits is not None:
            return manifest
        manifest = manifest.model_copy(update={"limits": limits})
        manifest.write(self.path)
        return manifest

    def task_directory(self, problem: Problem) -> Path:
        return self.path / "tasks" / problem.entry.id

    def append(self, result: BenchResult) -> None:
        """Raises StoreError."""
        append(self.path / RESULTS_FILE, [result])

    def results(self) -> list[BenchResult]:
        """In the order of the suite; of a task that has two, the last. Raises StoreError."""
        return read_results(self.path)

    def write_metrics(self, metrics: Metrics) -> None:
        """Raises StoreError."""
        metrics.write(self.path)


def read_results(directory: Path) -> list[BenchResult]:
    """In the order of the suite. Raises StoreError where there is no such run, or a line can't be read."""
    manifest, path = BenchManifest.read(directory), directory / RESULTS_FILE
    try:
        by_id = {result.task.id: result for result in read_lines(path, BenchResult)} if path.exists() else {}
    except StoreError as error:
        # What was played is also in its run directory.
        remedy = "Restore the file, or remove that line and go on with --resume: the task's run is read again"
        raise StoreError(error.cause.replace(": : ", ": "), remedy) from None
    return [by_id[entry.id] for entry in manifest.tasks if entry.id in by_id]


def stack_differences(one: Stack, other: Stack) -> dict[str, str]:
    """Returns field -> what differs in the second stack, such as `torch 2.13.0, was 2.11.0`. GPUs differ by model."""
    found = {}
    for name in Stack.model_fields:
        before, after = getattr(one, name), getattr(other, name)
        if name == "gpus":
            before, after = (", ".join(gpu.name for gpu in gpus) for gpus in (before, after))
        if before != after:
            found[name] = f"{name} {after or 'none'}, was {before or 'none'}"
    return found


def machine_differences(one: Stack, other: Stack) -> list[str]:
    """Another GPU of the same kind, or the same one with other limits."""
    pairs = zip(one.gpus, other.gpus, strict=False)
    return [
        f"GPU {name} {getattr(after, name)}, was {getattr(before, name)}"
        for before, after in pairs
        for name in type(after).model_fields
        if name != "name" and getattr(before, name) != getattr(after, name)
    ]
