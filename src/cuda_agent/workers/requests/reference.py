"""Requests to the reference worker."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, Strict

from cuda_agent.core.enums import OracleWay, Precision
from cuda_agent.core.graph import TensorMeta
from cuda_agent.workers.buffers import extent_bytes
from cuda_agent.workers.requests import Count, Done, Many, Spec, TensorRefs, WorkerAnswer, WorkerRequest

#: bytes of a call from which on a task is large: its workers keep no memory between calls, and its answers are compared
#: piece by piece.
LARGE = 256 << 20
#: the variant that changes a few elements of the inputs of the call before it.
CHANGED_ELEMENTS = "changed_elements"
#: the variants with infinities and with NaN, and the one that has all of the first but infinities.
SPECIAL, NAN = NOT_FINITE = "special", "nan"
EXTREMES = "extremes"


class TaskSpec(WorkerAnswer):
    """What crosses between processes for one task. Metas are dense: what isn't is laid out in row-major order."""

    init: Spec
    inputs_spec: Spec
    inputs: Many[TensorMeta] = Field(min_length=1)
    state: dict[str, TensorMeta]
    outputs_spec: Spec
    outputs: Many[TensorMeta]
    #: inputs that the reference changes in place.
    mutated: Many[int]
    #: parameters and buffers that the reference changes.
    changed: Many[str] = ()
    #: float32 matrix products or convolutions occur.
    products: bool
    #: eager at the precision policy isn't eager at PyTorch's flags.
    policy_differs: bool
    #: names of the operators that draw random numbers.
    random: Many[str] = ()
    variants: Many[str]
    #: variants far from what the task draws.
    wide_variants: Many[str] = ()
    #: device memory that a call holds at most, inputs and weights included; 0 on the CPU.
    peak_bytes: Count = 0
    #: answers are computed and compared piece by piece.
    large: bool = False

    @property
    def seeded(self) -> bool:
        """Whether `forward` draws random numbers. Reference and candidate have the same generator state before each
        call."""
        return bool(self.random)

    @property
    def rest_bytes(self) -> int:
        """The part of `peak_bytes` that is neither input nor output."""
        return max(0, self.peak_bytes - sum(map(extent_bytes, (*self.inputs, *self.outputs))))


class CallEstimate(WorkerAnswer):
    """The bytes of a call's inputs, of its outputs, and of the rest that it holds at its peak; all 0 where only values
    would tell."""

    inputs: Count = 0
    outputs: Count = 0
    rest: Count = 0


class EstimateCall(WorkerRequest[CallEstimate]):
    """Estimates the memory of a call from shapes, without a device."""

    name: str
    source: str


class LoadTask(WorkerRequest[TaskSpec]):
    """Executes the task once and says what crosses: specs and metas of inputs, weights and outputs. A call of
    `large_bytes` makes the task large."""

    name: str
    source: str
    seed: int
    precision: Precision
    large_bytes: int = LARGE


class DrawnInputs(WorkerAnswer):
    """The specs of the inputs, in order. `dropped` says why a variant doesn't apply to them."""

    specs: Many[Spec] = ()
    dropped: str | None = None


class DrawInputs(WorkerRequest[DrawnInputs]):
    """Draws fresh inputs into each place under its seed, changed as `variant` says."""

    seeds: tuple[int, ...]
    into: tuple[TensorRefs, ...]
    variant: str | None = None


class DrawWeights(WorkerRequest[Done]):
    """Draws weights (without a seed: takes them as they are) into an arena, in the order of the state dict. With
    `scaled`, the signal of the inputs survives on them."""

    seed: int | None
    into: TensorRefs
    scaled: bool = False


class Answered(WorkerAnswer):
    """The nesting of the answer."""

    spec: Spec


class ComputeAnswer(WorkerRequest[Answered]):
    """Computes the task's answer to the given inputs at PyTorch's flags, and holds it until the whole is taken, until
    the next one, or until memory is freed. `rng` seeds torch's generators before each call. With `twin`, a second model
    answers, constructed under that seed, with the same state dict. With `oracle`, the other answers can be taken
    too."""

    inputs: TensorRefs
    spec: Spec
    precision: Precision
    rng: int
    twin: int | None = None
    oracle: bool = True


class TakenPiece(WorkerAnswer):
    """`oracle` says what the oracle computed in, and `way` how; "" and None where it wasn't asked. `oracle_bytes` is
    the device memory that it took besides its answers; 0 where memory for it was there already."""

    oracle: str = ""
    way: Annotated[OracleWay | None, Strict(False)] = None
    oracle_bytes: Count = 0


class TakePiece(WorkerRequest[TakenPiece]):
    """Writes a piece of the answer that is held: of each output the elements from its place in `begins` on, in
    row-major order, as many as fit. `eager` is at PyTorch's flags, `policy` at the precision policy's, `oracle` in
    float64. The inputs must be the same as when the answer was computed."""

    begins: tuple[int, ...]
    eager: TensorRefs
    policy: TensorRefs | None = None
    oracle: TensorRefs | None = None


class ImportCapture(WorkerRequest[Done]):
    """Imports what `CaptureGraph` needs. It needs neither a task nor the device."""


class CapturedGraph(WorkerAnswer):
    """A `core.graph.Graph` as JSON."""

    graph: str


class CaptureGraph(WorkerRequest[CapturedGraph]):
    """Captures the graph of `forward`."""

    seed: int
