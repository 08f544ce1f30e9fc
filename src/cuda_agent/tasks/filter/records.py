"""The result of pass 1 for pass 2, and the conversion of failures to findings."""

from typing import Any

from pydantic import Field

from cuda_agent.core.enums import Verdict
from cuda_agent.core.record import StoredRecord
from cuda_agent.tasks.records import Measurement, Rule, TaskFinding
from cuda_agent.workers.process import Fault
from cuda_agent.workers.requests import FaultKind

#: The relative tolerance of an output's values in another process, over its largest value.
SAMPLE_TOLERANCE = 1e-3
_DETAIL = 400
_SCARCE = (FaultKind.DIED, FaultKind.DEADLINE, FaultKind.OUT_OF_MEMORY)


class Checked(StoredRecord):
    """A task that passed every rule except those of time. `sample` has for each output its norm and some of its values,
    which any other process must reproduce."""

    task_key: str
    peak_memory_bytes: int | None = None
    graph_hash: str | None = None
    graph_operators: tuple[str, ...] = ()
    sample: tuple[tuple[float, ...], ...] = ()
    seconds: dict[str, float] = Field(default_factory=dict)


class Failure(Exception):
    """A task breaks a rule. With `scarce` it ran short of time or memory, or was killed, and may pass alone."""

    def __init__(self, finding: TaskFinding, *, scarce: bool = False) -> None:
        self.finding, self.scarce = finding, scarce
        #: The seconds of each step until the failure.
        self.seconds: dict[str, float] = {}
        super().__init__(finding.detail)


def from_finding(found: TaskFinding) -> Failure:
    """Returns the failure that a worker reports."""
    return Failure(TaskFinding(rule=found.rule, detail=_line(found.detail)), scarce=found.rule is Rule.MEMORY)


def from_fault(fault: Fault, rule: Rule) -> Failure:
    """Returns the failure of a process that ended, hung or broke its protocol while `rule` was checked."""
    if fault.verdict is Verdict.OUT_OF_MEMORY:
        rule = Rule.MEMORY
    return Failure(TaskFinding(rule=rule, detail=_line(fault.reason)), scarce=fault.kind in _SCARCE)


def failed(task_key: str, failure: Failure, checked: Checked | None = None) -> Measurement:
    """Returns the measurement of a task that breaks a rule, with its known results."""
    seconds = {**(checked.seconds if checked else {}), **failure.seconds}
    return Measurement(task_key=task_key, finding=failure.finding, seconds=seconds, **known_of(checked))


def known_of(checked: Checked | None) -> dict[str, Any]:
    """Returns the results of the checks that a measurement repeats."""
    return checked.model_dump(include={"peak_memory_bytes", "graph_hash", "graph_operators"}) if checked else {}


def same_sample(mine: tuple[tuple[float, ...], ...], yours: tuple[tuple[float, ...], ...]) -> bool:
    """Returns whether two processes gave the same outputs."""
    if [len(one) for one in mine] != [len(one) for one in yours]:
        return False
    for one, other in zip(mine, yours, strict=True):
        size = max((abs(value) for value in one[1:]), default=0.0)
        norm, *values = zip(one, other, strict=True)
        if abs(norm[0] - norm[1]) > SAMPLE_TOLERANCE * max(abs(norm[0]), 1e-30):
            return False
        if any(not abs(a - b) <= SAMPLE_TOLERANCE * size + 1e-30 for a, b in values):
            return False
    return True


def _line(text: str) -> str:
    return " ".join(text.split())[:_DETAIL]
