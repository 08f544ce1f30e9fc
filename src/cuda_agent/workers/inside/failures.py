"""Why an operation failed, decided here, in the process that sees the exception."""

from __future__ import annotations

import torch

from cuda_agent.core.assets import tables
from cuda_agent.core.errors import CudaAgentError, OutOfMemory
from cuda_agent.workers.buffers import OutOfDeviceMemory
from cuda_agent.workers.requests import FaultKind


class Refusal(Exception):
    """Ends an operation with a failure of a known kind."""

    def __init__(self, kind: FaultKind, message: str) -> None:
        self.kind = kind
        super().__init__(message)


def kind_of(error: BaseException) -> FaultKind:
    """The kind of whatever an operation raised."""
    if isinstance(error, Refusal):
        return error.kind
    if is_out_of_memory(error):
        return FaultKind.OUT_OF_MEMORY
    if isinstance(error, CudaAgentError):
        return FaultKind.TASK
    return FaultKind.DEVICE if _says(error, "device_broken") else FaultKind.RAISED


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory is short, the host's or the device's."""
    if isinstance(error, OutOfMemory | OutOfDeviceMemory | MemoryError | torch.OutOfMemoryError):
        return True
    return not isinstance(error, CudaAgentError) and _says(error, "out_of_memory")


def _says(error: BaseException, table: str) -> bool:
    text = str(error)
    return any(words in text for words in tables(__file__)[table])  # foreign text: torch's


def words_of(error: BaseException) -> tuple[str, str]:
    """The message and the remedy that the judge gets; only our own errors have a remedy."""
    if isinstance(error, CudaAgentError):
        return error.cause, error.remedy
    return str(error) if isinstance(error, Refusal) else first_lines(error), ""


def first_lines(error: BaseException, count: int = 6) -> str:
    """`Type: message`, at most `count` lines of it."""
    lines = [line for line in str(error).splitlines() if line.strip()][:count]
    return f"{type(error).__name__}: " + "\n".join(lines)
