"""What `extract` sends to its sandboxed process, and what that answers."""

from typing import Literal

from pydantic import Field

from cuda_agent.core.enums import Device
from cuda_agent.core.extraction import ExtractedTask, LeftOutPart
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


class DraftTask(ExtractedTask):
    """A task and its source. The parent sets the key and the file."""

    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=200)
    key: Literal[""] = ""
    file: Literal[""] = ""
    prefix: Literal["module."] = "module."
    source: str


class Findings(Record):
    """The tasks of a model. `note` says how the time was taken."""

    total_us: float = Field(gt=0)
    outside_us: float
    note: str
    tasks: tuple[DraftTask, ...]
    left_out: tuple[LeftOutPart, ...]


class ExtractionAnswer(Record):
    """The answer of the sandboxed process: what it found, or an error that the user can correct, as a TaskError has it.
    The user's code ran there, so the parent checks every field."""

    findings: Findings | None = None
    cause: str = ""
    remedy: str = ""
    detail: str = ""
