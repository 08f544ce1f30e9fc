"""Requests that every worker answers."""

from __future__ import annotations

from cuda_agent.core.enums import Device
from cuda_agent.workers.requests import Done, WorkerRequest


class Start(WorkerRequest[Done]):
    """Starts the device on the given cores, if the system allows that; none given: on any. With `small_context` the
    process has one connection to the device."""

    device: Device
    cores: tuple[int, ...] = ()
    small_context: bool = False


class Attach(WorkerRequest[Done]):
    """Maps an arena. On the CPU its memory comes as a descriptor; on a GPU `handle` is its CUDA IPC handle in hex."""

    arena: str
    nbytes: int
    device: Device
    handle: str = ""


class Detach(WorkerRequest[Done]):
    """Unmaps an arena. The role has let go of its tensors before."""

    arena: str


class ImportTask(WorkerRequest[Done]):
    """Imports what the task imports (transformers takes seconds). A failure shows when the task is loaded."""

    name: str
    source: str
