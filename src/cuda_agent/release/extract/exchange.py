"""What `extract` sends to its sandboxed process, and what that answers."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from cuda_agent.core.enums import Device
from cuda_agent.core.extraction import LeftOutPart
from cuda_agent.core.graph import TensorMeta
from cuda_agent.core.record import Record


class ExtractionJob(Record):
    """The model to extract from. `folders` hold the user's own code. `top` is the most tasks, `operators` the most
    operators of a task."""

    source: str
    name: str
    folders: tuple[str, ...]
    device: Device
    seed: int
    top: int
    operators: int


class DraftTask(Record):
    """A task and its source; the other fields are those of `ExtractedTask`."""

    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=200)
    source: str
    kind: str
    origin: str
    paths: tuple[str, ...]
    calls: int
    time_us: float
    share: float
    operators: int
    weights: int
    call: dict[str, Any]
    inputs: tuple[TensorMeta, ...]


class Findings(Record):
    """The tasks of a model. `note` says how the time was taken."""

    total_us: float = Field(gt=0)
    outside_us: float
    note: str
    tasks: tuple[DraftTask, ...]
    left_out: tuple[LeftOutPart, ...]


class ExtractionFailed(Record):
    """An error that the user can correct, as a TaskError has it."""

    cause: str
    remedy: str
    detail: str


class ExtractionAnswer(Record):
    """The answer of the sandboxed process. The user's code ran there, so the parent checks every field."""

    findings: Findings | None = None
    failed: ExtractionFailed | None = None
