"""Requests to the worker of a candidate. What it answers convicts and never acquits."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, Strict

from cuda_agent.workers.requests import Count, Done, Spec, TensorRefs, WorkerAnswer, WorkerRequest

#: the beginning of the line that `inside.inspected` prints; JSON follows.
INSPECTED = "INSPECTED "
#: kind, mangled name, runs, ns of a GPU kernel in one call.
KernelRow = Annotated[tuple[str, str, Annotated[Count, Field(ge=1)], Count], Strict(False)]


class DispatchRecord(WorkerAnswer):
    """ATen operators that torch's dispatcher saw, with counts. `intact`: it recorded to the end."""

    operators: dict[str, Annotated[Count, Field(ge=1)]] = Field(max_length=1000)
    intact: bool


class LoadCandidate(WorkerRequest[Done]):
    """Loads the library as `cuda_extension`, `model_new.py` as `model_new`, and makes `ModelNew(*init)` on the device,
    in the place of the candidate before it. `package`: another one for each candidate that follows."""

    library: str | None
    model: str
    init: Spec
    package: str = ""


class LoadedWeights(WorkerAnswer):
    """`derive_ms`: what it took, copies included. `frozen`: weights are derived when they are loaded."""

    derive_ms: float = Field(ge=0, le=1e12)
    frozen: bool
    dispatch: DispatchRecord


class LoadWeights(WorkerRequest[LoadedWeights]):
    """Calls `load_state_dict` with tensors of an arena."""

    names: tuple[str, ...]
    weights: TensorRefs


class ChangedWeights(WorkerAnswer):
    """Names of weights whose values in the model are no longer those that were loaded."""

    changed: list[str]


class CompareWeights(WorkerRequest[ChangedWeights]):
    """Compares the model's weights with those that were loaded."""


class CallResult(WorkerAnswer):
    """`unseen_outputs`: outputs in memory that no recorded operator made. `kernels`: what ran on the GPU, the longest
    first; None where that wasn't asked for, or wasn't recorded, as `kernels_error` says."""

    spec: Spec
    unseen_outputs: Count
    dispatch: DispatchRecord
    kernels: list[KernelRow] | None = Field(default=None, max_length=1000)
    kernels_error: str = ""


class CallModel(WorkerRequest[CallResult]):
    """Calls `forward` once on the given inputs and copies its outputs, checked, to their places. The tensors of a slot
    are the same objects at every call. With `poison`, memory that torch allocates is filled with NaN (or the largest
    integer) first, so that an unwritten output shows. With `kernels`, the GPU's kernels are recorded. `rng` seeds
    torch's generators. Without `keeps`, nothing that it allocates stays."""

    inputs: TensorRefs
    spec: Spec
    outputs: TensorRefs
    poison: bool
    rng: int
    kernels: bool = False
    keeps: bool = True


class ForgetBuffers(WorkerRequest[Done]):
    """Lets go of everything in the judge's arenas and of earlier outputs."""
