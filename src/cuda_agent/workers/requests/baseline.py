"""Requests to the workers of the baselines."""

from __future__ import annotations

from pydantic import Field

from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.records import CompileReport
from cuda_agent.workers.requests import Done, HeldMemory, TensorRefs, WorkerAnswer, WorkerRequest


class ImportCompiler(WorkerRequest[Done]):
    """Imports the compiler, which reads its settings from `environment` then."""

    device: Device
    environment: dict[str, str]


class PlannedBaselines(WorkerAnswer):
    """Name -> whether its arithmetic is the precision policy's."""

    matched: dict[str, bool] = Field(max_length=64)


class PlanBaselines(WorkerRequest[PlannedBaselines]):
    """Loads the task. `compiled`: whether this worker is for the compiled forms."""

    name: str
    source: str
    precision: Precision
    autotune: bool
    compiled: bool


class PreparedBaseline(WorkerAnswer):
    """What the compiler made of it, or why it is left out."""

    left_out: str = ""
    compiled: CompileReport | None = None


class PrepareBaseline(WorkerRequest[PreparedBaseline]):
    """Compiles a baseline and runs it until it is warm, unless it can't be the fastest. `bandwidth`: bytes/s of the
    device's memory by its datasheet; None: unknown."""

    baseline: str
    bandwidth: float | None = None


class SettleBaselines(WorkerRequest[HeldMemory]):
    """Everything is prepared: frees what only preparing needs."""


class RetireBaseline(WorkerRequest[HeldMemory]):
    """Frees what a baseline holds. It isn't asked for again."""

    baseline: str


class CopyWeights(WorkerRequest[Done]):
    """Copies the state dict's tensors into every baseline."""

    names: tuple[str, ...]
    weights: TensorRefs
