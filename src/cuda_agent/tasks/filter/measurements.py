"""Reads and writes the filter's results in a dataset's folder. There are two files for each stack: tasks that passed
the checks, and measurements. Both are only appended to, and known tasks are not checked or measured again."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cuda_agent.core.enums import Device
from cuda_agent.core.errors import StoreError, UsageError
from cuda_agent.core.files import locked
from cuda_agent.core.hashing import digest_text
from cuda_agent.core.lines import append, read_headed, read_lines
from cuda_agent.core.stack import Stack
from cuda_agent.tasks.filter.records import Checked
from cuda_agent.tasks.records import Measurement, MeasurementFile

_NAME = "measurements-{}.jsonl"
_CHECKS = "checks-{}.jsonl"
#: The lock for appending to these files.
FILTER_LOCK = ".filter.lock"
#: Fields of the stack that times don't depend on.
_INDIFFERENT = {"cuda_agent", "cxx_compiler", "cuda_compiler"}


@dataclass(frozen=True)
class Measurements:
    """One file of measurements, by task key. Of two measurements of a task the first counts."""

    path: Path
    stack: Stack
    by_key: dict[str, Measurement]

    @property
    def stack_name(self) -> str:
        return stack_hash(self.stack)


def stack_for(stack: Stack, device: Device) -> Stack:
    """Returns the stack of measurements on `device`."""
    return stack.model_copy(update={"settings": {**stack.settings, "device": device.value}})


def stack_hash(stack: Stack) -> str:
    """Returns a hash that is the same for machines of the same kind; the GPU's UUID doesn't count."""
    facts = stack.model_dump(mode="json", exclude=_INDIFFERENT)
    facts["gpus"] = [{k: v for k, v in gpu.items() if k != "uuid"} for gpu in facts["gpus"][:1]]
    return digest_text(*(f"{name}={facts[name]}" for name in sorted(facts)))[:16]


def read_measured(path: Path) -> Measurements:
    """Reads a file of measurements. Raises StoreError."""
    head, found = read_headed(path, MeasurementFile, Measurement)
    if head is None:
        raise StoreError(f"{path} has no measurements", "Give or restore a file of `tasks filter`")
    by_key: dict[str, Measurement] = {}
    for one in found:
        by_key.setdefault(one.task_key, one)
    return Measurements(path, head.stack, by_key)


def read_all(folder: Path) -> list[Measurements]:
    """Returns the measurements on all stacks, sorted by file name. Raises StoreError."""
    return [read_measured(path) for path in sorted(folder.glob(_NAME.format("*")))]


class Journal:
    """The known results for one stack, to which a run of the filter adds."""

    def __init__(self, folder: Path, stack: Stack) -> None:
        """Opens the files of a stack, or creates them. Raises StoreError."""
        name = stack_hash(stack)
        self.path = folder / _NAME.format(name)
        self.checks_path = folder / _CHECKS.format(name)
        if self.path.exists() and read_headed(self.path, MeasurementFile, Measurement)[0] is not None:
            self.measured = read_measured(self.path).by_key
        else:
            append(self.path, [MeasurementFile(stack=stack)])
            self.measured = {}
        found = read_lines(self.checks_path, Checked, optional=True)
        self.checked = {one.task_key: one for one in found}

    def add(self, measurement: Measurement) -> None:
        append(self.path, [measurement])
        self.measured[measurement.task_key] = measurement

    def add_checked(self, checked: Checked) -> None:
        append(self.checks_path, [checked])
        self.checked[checked.task_key] = checked


def merge(folder: Path, sources: Sequence[Path]) -> dict[str, int]:
    """Copies the measurements of other folders (or files, `.gz` too) into this folder, and of folders also the passed
    checks. Returns the number of new measurements by file. Known results don't change, so merging twice, or in a
    resumed run, has no effect. Raises UsageError where a source has none, StoreError."""
    added: dict[str, int] = {}
    with locked(folder / FILTER_LOCK):
        for found in _found_in(sources):
            journal = Journal(folder, found.stack)
            new = [one for key, one in sorted(found.by_key.items()) if key not in journal.measured]
            append(journal.path, new)
            checks = read_lines(found.path.parent / journal.checks_path.name, Checked, optional=True)
            append(journal.checks_path, [one for one in checks if one.task_key not in journal.checked])
            added[journal.path.name] = added.get(journal.path.name, 0) + len(new)
    return added


def _found_in(sources: Iterable[Path]) -> Iterator[Measurements]:
    for source in sources:
        if not source.exists():
            raise UsageError(f"No such folder or file: {source}", "Give the output of `tasks filter`")
        found = read_all(source) if source.is_dir() else [read_measured(source)]
        if not found:
            name = _NAME.format("STACK")
            raise UsageError(f"{source} has no measurements", f"Give a folder with {name}, or the file itself")
        yield from found
