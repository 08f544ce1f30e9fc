"""Errors, named by the boundary that was crossed. Each is one line: cause, then remedy.

A bad *candidate* is data (a `Verdict`), not an error. Our own bug is an ordinary exception and crashes.
"""

from __future__ import annotations


class CudaAgentError(Exception):
    """A failure that the user can act on. The command line prints `cause` and `remedy` and exits with `exit_code`."""

    exit_code = 1

    def __init__(self, cause: str, remedy: str = "", *, detail: str = "") -> None:
        self.cause = cause
        self.remedy = remedy
        self.detail = detail
        super().__init__(f"{cause}. {remedy}" if remedy else cause)


class UsageError(CudaAgentError):
    """An unknown option, an impossible value, a missing file."""

    exit_code = 2


class TaskError(CudaAgentError):
    """The task file can't be judged: it doesn't parse, has no `Model`, fails, is stochastic, or null answers pass."""

    exit_code = 3


class OutOfMemory(TaskError):
    """The task needs more memory than it found. Alone on the device, it needs more than the device has."""


class DeviceError(CudaAgentError):
    """The device, a compiler or a library that is needed isn't there."""

    exit_code = 4


class SandboxError(CudaAgentError):
    """The isolation that was asked for can't be had here."""

    exit_code = 5


class StoreError(CudaAgentError):
    """A file can't be read or written: no space, no permission, another schema version, held by another process."""

    exit_code = 6


class PolicyError(CudaAgentError):
    """The policy that chooses the next action failed for good."""

    exit_code = 7


class PolicyStalled(PolicyError):
    """The policy answers but no longer acts: nothing, nonsense, or the same call again and again. The best candidate
    so far still counts."""


class WorkerError(CudaAgentError):
    """A trusted-side worker (reference, baseline) died or broke its protocol."""

    exit_code = 8


class NotCovered(CudaAgentError):
    """No skill of the playbook covers these operators; there is no candidate, and that is the honest answer."""

    exit_code = 10


class LockMismatch(CudaAgentError):
    """This machine isn't the locked stack, so its numbers wouldn't compare."""

    exit_code = 11


#: What a command returns besides the codes above.
EXIT_OK = 0
EXIT_NOT_PASSED = 9
EXIT_INTERRUPTED = 130
