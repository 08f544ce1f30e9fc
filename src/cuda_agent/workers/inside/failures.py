"""Why an operation failed, decided here, in the process that sees the exception."""

from __future__ import annotations

import torch

from cuda_agent.core.errors import CudaAgentError, OutOfMemory
from cuda_agent.workers.buffers import OutOfDeviceMemory
from cuda_agent.workers.requests import FailureKind

# foreign text: torch, the C++ library, cuBLAS, cuDNN and Triton's launcher raise no type of their own for these.
_OUT_OF_MEMORY = (
    "can't allocate memory",
    "out of memory",
    "std::bad_alloc",
    "Cannot allocate memory",
    "STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",
)
_DEVICE_BROKEN = ("CUDA error", "CUDA driver error", "device-side assert", "illegal memory access")


class Refusal(Exception):
    """Ends an operation with a failure of a known kind."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        self.kind = kind
        super().__init__(message)


def kind_of(error: BaseException) -> FailureKind:
    """The kind of whatever an operation raised."""
    if isinstance(error, Refusal):
        return error.kind
    if is_out_of_memory(error):
        return FailureKind.OUT_OF_MEMORY
    if isinstance(error, CudaAgentError):
        return FailureKind.TASK
    text = str(error)
    return FailureKind.DEVICE if any(words in text for words in _DEVICE_BROKEN) else FailureKind.RAISED


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory is short, the host's or the device's."""
    if isinstance(error, OutOfMemory | OutOfDeviceMemory | MemoryError | torch.OutOfMemoryError):
        return True
    text = "" if isinstance(error, CudaAgentError) else str(error)
    return any(words in text for words in _OUT_OF_MEMORY)


def message_of(error: BaseException) -> str:
    """The text that the judge gets; of an error of ours, the cause and the remedy on a line each."""
    if isinstance(error, CudaAgentError):
        return f"{error.cause}\n{error.remedy}"
    return str(error) if isinstance(error, Refusal) else first_lines(error)


def first_lines(error: BaseException, count: int = 6) -> str:
    """`Type: message`, at most `count` lines of it."""
    lines = [line for line in str(error).splitlines() if line.strip()][:count]
    return f"{type(error).__name__}: " + "\n".join(lines)
