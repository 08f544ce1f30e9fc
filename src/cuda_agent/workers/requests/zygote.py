"""Requests to a zygote."""

from __future__ import annotations

from cuda_agent.core.enums import Device, SandboxLevel
from cuda_agent.workers.requests import Done, WorkerAnswer, WorkerRequest


class WarmedZygote(WorkerAnswer):
    """Whether the imports have started CUDA; then no process can be forked."""

    cuda: bool


class WarmZygote(WorkerRequest[WarmedZygote]):
    """Imports what tasks need once: the module `serves`, whose operations forks answer, and the compiler."""

    device: Device
    level: SandboxLevel
    compiler: bool
    serves: str


class ForkTask(WorkerRequest[Done]):
    """Forks a process that answers on the socket that comes with the request."""

    environment: dict[str, str]


class EndedFork(WorkerAnswer):
    """Its exit code, minus a signal's number; None where there was no fork."""

    code: int | None


class EndFork(WorkerRequest[EndedFork]):
    """Ends the fork and everything that it started."""
