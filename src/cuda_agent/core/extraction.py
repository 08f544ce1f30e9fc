"""The records of `extract` and `apply`: the tasks of a whole model, and the model with optimized parts."""

from typing import Any, Self

from pydantic import Field, model_validator

from cuda_agent.core.enums import Device, Precision, SandboxLevel
from cuda_agent.core.graph import TensorMeta
from cuda_agent.core.record import Record, StoredRecord
from cuda_agent.core.records import Ratio, Timing
from cuda_agent.core.stack import Stack


class ExtractedTask(Record):
    """Submodules of a model that are the same task: class, configuration, shapes of weights and inputs.

    `paths` are their places in the model. `calls` counts the calls of all of them in one pass. `share` is their share
    of the model's time, with their children's. `call` has the arguments as nested values with numbered tensors; tensor
    i is the task's input i, described by `inputs[i]`. `prefix` is put before the submodule's names of weights.
    """

    name: str
    key: str
    file: str
    kind: str
    origin: str
    paths: tuple[str, ...] = Field(min_length=1)
    calls: int = Field(ge=1)
    time_us: float = Field(ge=0)
    share: float = Field(ge=0, le=1)
    operators: int
    weights: int
    call: dict[str, Any]
    inputs: tuple[TensorMeta, ...] = Field(min_length=1)
    prefix: str = "module."


class LeftOutPart(Record):
    """Submodules that take time but stay in PyTorch, with the reason. The path "forward" stands for the model's own."""

    kind: str
    paths: tuple[str, ...] = Field(min_length=1)
    time_us: float
    share: float
    reason: str


class Extraction(StoredRecord):
    """A model's time by its submodules, and the tasks that were made of the slowest ones.

    `source` is the whole model in the KernelBench convention. `folders` have the user's code, which its imports need.
    `total_us` is the time of one pass, by the wall clock on `cpu` and by GPU work on `cuda`. `outside_us` is the time
    outside the tasks and the submodules that were left out.
    """

    file_name = "extraction.json"
    model: str
    name: str
    source: str
    folders: tuple[str, ...] = ()
    device: Device
    total_us: float = Field(gt=0)
    outside_us: float = 0.0
    tasks: tuple[ExtractedTask, ...]
    left_out: tuple[LeftOutPart, ...] = ()
    sandbox: SandboxLevel
    stack: Stack
    started: str

    @property
    def covered(self) -> float:
        """The tasks' share of the model's time."""
        return min(1.0, sum(task.share for task in self.tasks))


class WholePart(Record):
    """One optimized task in the whole model. In one pass, `calls` went to the candidate, and `fallbacks` to the
    original because shapes, types or constants differed from the verified ones. `speedup` is that of the part alone
    over eager."""

    task: str
    key: str
    candidate_digest: str
    run: str
    paths: tuple[str, ...]
    calls: int = Field(ge=0)
    fallbacks: int = Field(ge=0)
    share: float = Field(ge=0, le=1)
    speedup: float = Field(gt=0)


class WholeModel(StoredRecord):
    """A whole model with optimized submodules beside the original, timed in the judge's side-by-side rounds.

    `parts` were replaced; `left_out` are those that stay in PyTorch. `agreed` means that every trial's outputs were
    within the tolerance of the original's; times exist only then. `speedup` is original / patched. `others` compares
    the patched model with `torch.compile` of the original and the other baselines. `covered` is the share of the
    original's time in the parts that ran. `predicted` is Amdahl's speed-up from the parts' shares and speed-ups.
    `max_error` is the largest relative L2 error of an output against the float64 oracle, and `original_error` is that
    of the original.
    """

    file_name = "whole_model.json"
    model: str
    key: str
    device: Device
    precision: Precision
    parts: tuple[WholePart, ...] = Field(min_length=1)
    left_out: tuple[LeftOutPart, ...] = ()
    agreed: bool
    reason: str = ""
    max_error: float | None = None
    original_error: float | None = None
    max_abs_error: float | None = None
    original: Timing | None = None
    patched: Timing | None = None
    speedup: Ratio | None = None
    others: dict[str, Ratio] = Field(default_factory=dict)
    covered: float = Field(ge=0, le=1)
    predicted: float = Field(gt=0)
    notes: tuple[str, ...] = ()
    sandbox: SandboxLevel
    stack: Stack
    started: str

    @property
    def closest_attempt(self) -> Ratio | None:
        """The ratio over the original's fastest form where the patched model isn't faster beyond the interval. None
        where it is faster, or wasn't timed."""
        if self.speedup is None:
            return None
        least = min((self.speedup, *self.others.values()), key=lambda ratio: ratio.value)
        return least if least.low <= 1.0 else None

    @model_validator(mode="after")
    def _timed_means_agreed(self) -> Self:
        times = (self.original, self.patched, self.speedup)
        if any(time is not None for time in times) and (not self.agreed or None in times):
            raise ValueError("times exist all together, and only where the outputs agreed")
        return self
