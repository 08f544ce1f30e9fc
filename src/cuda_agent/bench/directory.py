"""The folder of a benchmark run.

bench.json and suite.jsonl describe the run. results.jsonl gets a line for each finished task, and turns.jsonl a line
for each turn on the device. metrics.json has the metrics, and tasks/ID the run directories of `optimize`.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from pydantic import ValidationError

from cuda_agent.agent.storage.rundir import RunDirectory, current_commit, provenance
from cuda_agent.bench.options import BenchOptions
from cuda_agent.bench.suite import SUITE_FILE, Problem
from cuda_agent.core.bench import BenchManifest, BenchResult
from cuda_agent.core.errors import StoreError, UsageError
from cuda_agent.core.lines import append, read_lines, write_lines
from cuda_agent.core.record import now
from cuda_agent.core.records import Resumption, Task
from cuda_agent.core.stack import Stack, read_stack

RESULTS_FILE = "results.jsonl"
TURNS_FILE = "turns.jsonl"


class BenchDirectory:
    """Writes and reads the files of a benchmark run."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    @property
    def turns_log(self) -> Path:
        """The log of the device's turns; see `pool.server.QueueServer`."""
        return self.path / TURNS_FILE

    @property
    def was_begun(self) -> bool:
        return (self.path / BenchManifest.file_name).is_file()

    def prepare(self) -> None:
        """Makes the folder. It may only have files of a run without a manifest. Raises UsageError, StoreError."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            strange = {item.name for item in self.path.iterdir()} - {"lock", SUITE_FILE}
        except FileExistsError:
            raise UsageError(f"{self.path} is a file", "Choose another --out") from None
        except OSError as error:
            raise StoreError(f"Can't make {self.path}: {error.strerror}", "Choose another --out") from None
        if self.was_begun:
            raise UsageError(f"{self.path} has a benchmark run", "Continue it with --resume, or choose another --out")
        if any(not name.startswith(".") for name in strange):
            raise UsageError(f"{self.path} isn't empty", "Choose another --out")

    def lock(self) -> AbstractContextManager[None]:
        """Locks the run for this process. Raises StoreError while another process holds the lock."""
        return RunDirectory(self.path).lock()

    def write_start(
        self, suite: str, problems: Sequence[Problem], options: BenchOptions, policy: str, command: tuple[str, ...]
    ) -> BenchManifest:
        """Writes the tasks with their sources, then the manifest, after which the run can be resumed. Raises
        StoreError."""
        write_lines(self.path / SUITE_FILE, (problem.task for problem in problems))
        manifest = BenchManifest(
            command=command,
            suite=suite,
            tasks=tuple(problem.entry for problem in problems),
            policy=policy,
            configuration=options.model_dump(mode="json"),
            started=now(),
            **provenance(),
        )
        manifest.write(self.path)
        return manifest

    def read_start(self) -> tuple[BenchManifest, list[Problem], BenchOptions]:
        """Returns what `write_start` wrote. Raises UsageError where there is no run, StoreError."""
        if not self.was_begun:
            raise UsageError(f"{self.path} has no benchmark run", "Begin a run: cuda-agent bench SUITE --out DIR")
        manifest = BenchManifest.read(self.path)
        tasks = read_lines(self.path / SUITE_FILE, Task)
        if [task.key for task in tasks] != [entry.key for entry in manifest.tasks]:
            raise StoreError(f"{self.path / SUITE_FILE} isn't the suite of the run", "Restore the file")
        problems = list(map(Problem, manifest.tasks, tasks))
        try:
            return manifest, problems, BenchOptions.model_validate(manifest.configuration)
        except ValidationError as error:
            first = error.errors()[0]
            where = f"{self.path / BenchManifest.file_name}: {'.'.join(map(str, first['loc']))}"
            cause = f"The options can't be read from {where}: {first['msg']}"
            raise StoreError(cause, "Use the cuda-agent that wrote it") from None

    def write_resumption(self, manifest: BenchManifest, done: int) -> tuple[BenchManifest, list[str]]:
        """Records that the run is resumed after `done` tasks, and returns the changes of the stack. Raises
        StoreError."""
        here = read_stack()
        changes = [*stack_differences(manifest.stack, here).values(), *machine_differences(manifest.stack, here)]
        if current_commit() != manifest.commit:
            changes.append(f"commit {current_commit()}, was {manifest.commit}")
        entry = Resumption(started=now(), turns=done, changes=tuple(changes))
        manifest = manifest.model_copy(update={"resumed": (*manifest.resumed, entry)})
        manifest.write(self.path)
        return manifest, changes

    def task_directory(self, problem: Problem) -> Path:
        return self.path / "tasks" / problem.entry.id

    def append(self, result: BenchResult) -> None:
        """Raises StoreError."""
        append(self.path / RESULTS_FILE, [result])

    def results(self) -> list[BenchResult]:
        """Returns the results in the order of the suite. Raises StoreError."""
        return read_results(self.path)


def read_results(directory: Path) -> list[BenchResult]:
    """Returns the results in the order of the suite; of two results of a task, the later one. Raises StoreError where
    there is no such run or a line can't be read."""
    manifest, path = BenchManifest.read(directory), directory / RESULTS_FILE
    try:
        by_id = {result.task.id: result for result in read_lines(path, BenchResult, optional=True)}
    except StoreError as error:
        # The run directory has the played run too.
        remedy = "Restore the file, or remove that line and continue with --resume, which reads the task's run again"
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
    """Returns the differences between GPUs of the same model: another GPU, or other limits."""
    pairs = zip(one.gpus, other.gpus, strict=False)
    return [
        f"GPU {name} {getattr(after, name)}, was {getattr(before, name)}"
        for before, after in pairs
        for name in type(after).model_fields
        if name != "name" and getattr(before, name) != getattr(after, name)
    ]
