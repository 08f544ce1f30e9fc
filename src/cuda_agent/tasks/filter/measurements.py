"""The files of a data set's folder that hold what was found, one pair for each stack: what passed the checks, and the
measurements. Both are only appended to; a task that stands in one isn't asked again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cuda_agent.core.enums import Device
from cuda_agent.core.errors import StoreError, UsageError
from cuda_agent.core.hashing import digest_text
from cuda_agent.core.stack import Stack
from cuda_agent.tasks.filter.records import Checked
from cuda_agent.tasks.records import Measurement, MeasurementFile
from cuda_agent.tasks.store import append, only_one, read_headed, read_lines

_NAME = "measurements-{}.jsonl"
_CHECKS = "checks-{}.jsonl"
#: whoever adds to them works alone.
FILTER = "filter"
#: what no time depends on.
_INDIFFERENT = {"cuda_agent", "cxx_compiler", "cuda_compiler"}


@dataclass(frozen=True)
class Measured:
    """One file of measurements, by task key. A task that was measured twice counts as it was first."""

    path: Path
    stack: Stack
    by_key: dict[str, Measurement]


def stack_for(stack: Stack, device: Device) -> Stack:
    """The stack that a measurement on `device` names."""
    return stack.model_copy(update={"settings": {**stack.settings, "device": device.value}})


def stack_hash(stack: Stack) -> str:
    """The same for machines of the same kind: which GPU of that name it was makes no difference."""
    facts = stack.model_dump(mode="json", exclude=_INDIFFERENT)
    facts["gpus"] = [{k: v for k, v in gpu.items() if k != "uuid"} for gpu in facts["gpus"][:1]]
    return digest_text(*(f"{name}={facts[name]}" for name in sorted(facts)))[:16]


def read_measured(path: Path) -> Measured:
    """Raises StoreError."""
    head, found = read_headed(path, MeasurementFile, Measurement)
    if head is None:
        raise StoreError(f"{path} holds no measurements", "Give or restore a file that `tasks filter` has written")
    by_key: dict[str, Measurement] = {}
    for one in found:
        by_key.setdefault(one.task_key, one)
    return Measured(path, head.stack, by_key)


def read_all(folder: Path) -> list[Measured]:
    """Of all stacks, by name. Raises StoreError."""
    return [read_measured(path) for path in sorted(folder.glob(_NAME.format("*")))]


class Journal:
    """What one run of the filter knows and writes, for one stack."""

    def __init__(self, folder: Path, stack: Stack) -> None:
        """Raises StoreError."""
        name = stack_hash(stack)
        self.path = folder / _NAME.format(name)
        self.checks_path = folder / _CHECKS.format(name)
        if self.path.exists() and read_headed(self.path, MeasurementFile, Measurement)[0] is not None:
            self.measured = read_measured(self.path).by_key
        else:
            append(self.path, [MeasurementFile(stack=stack)])
            self.measured = {}
        found = read_lines(self.checks_path, Checked) if self.checks_path.exists() else []
        self.checked = {one.task_key: one for one in found}

    def unknown_checks(self, folder: Path) -> list[Checked]:
        """What passed the checks in another folder, on this stack, and isn't known here. Raises StoreError."""
        path = folder / self.checks_path.name
        found = read_lines(path, Checked) if path.exists() and path != self.checks_path else []
        return [one for one in found if one.task_key not in self.checked]

    def add(self, measurement: Measurement) -> None:
        append(self.path, [measurement])
        self.measured[measurement.task_key] = measurement

    def add_checked(self, checked: Checked) -> None:
        append(self.checks_path, [checked])
        self.checked[checked.task_key] = checked


def merge(folder: Path, sources: Sequence[Path]) -> dict[str, int]:
    """Takes the measurements of other folders (or files, `.gz` too) into this one's, and of folders what passed the
    checks; returns how many measurements are new, by file. What was found in both stays as it is here, so merging
    twice, or in a resumed run, changes nothing.

    Raises UsageError where a source holds none, StoreError."""
    added: dict[str, int] = {}
    with only_one(folder, FILTER):
        for found in _found_in(sources):
            journal = Journal(folder, found.stack)
            new = [one for key, one in sorted(found.by_key.items()) if key not in journal.measured]
            append(journal.path, new)
            append(journal.checks_path, journal.unknown_checks(found.path.parent))
            added[journal.path.name] = added.get(journal.path.name, 0) + len(new)
    return added


def _found_in(sources: Iterable[Path]) -> Iterator[Measured]:
    for source in sources:
        if not source.exists():
            raise UsageError(f"No such folder or file: {source}", "Give what `tasks filter` has written")
        found = read_all(source) if source.is_dir() else [read_measured(source)]
        if not found:
            name = _NAME.format("STACK")
            raise UsageError(f"{source} holds no measurements", f"Give a folder with {name}, or the file itself")
        yield from found
