"""Requests to the worker of a patched model, besides those to a candidate."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Strict

from cuda_agent.core.graph import TensorMeta
from cuda_agent.workers.requests import Count, Done, Spec, WorkerAnswer, WorkerRequest


class PatchedPart(BaseModel):
    """A candidate, and the submodules whose calls it takes (`core.extraction.ExtractedTask`)."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    library: str
    model: str
    call: Spec
    inputs: tuple[TensorMeta, ...]
    prefix: str
    paths: tuple[str, ...]


class LoadPatched(WorkerRequest[Done]):
    """Loads the whole model, and the candidates into the places of its submodules."""

    name: str
    source: str
    init: Spec
    parts: tuple[PatchedPart, ...]


class RedirectedCalls(WorkerAnswer):
    """Path -> (taken by the candidate, by the original) of the last call."""

    calls: dict[str, Annotated[tuple[Count, Count], Strict(False)]]


class CountRedirected(WorkerRequest[RedirectedCalls]):
    """Counts where the last call's submodules went."""
