"""Errors, named by the boundary that was crossed. Each is one line: the cause, then the remedy.

A bad *candidate* is data (a `Verdict`), not an error. A bug of this project is an ordinary exception and crashes.
"""


class CudaAgentError(Exception):
    """A failure that the user can act on. The command line prints `cause` and `remedy` and exits with `exit_code`."""

    exit_code = 1

    def __init__(self, cause: str, remedy: str = "", *, detail: str = "") -> None:
        self.cause = cause
        self.remedy = remedy
        self.detail = detail
        super().__init__(f"{cause}. {remedy}" if remedy else cause)


class UsageError(CudaAgentError):
    """An option is unknown, a value is impossible or a file is missing."""

    exit_code = 2


class TaskError(CudaAgentError):
    """The task file can't be judged: it doesn't parse, has no `Model`, fails, is stochastic, or accepts null
    outputs."""

    exit_code = 3


class OutOfMemory(TaskError):
    """The task needs more memory than is free. Alone on the device, it needs more than the device has."""


class DeviceError(CudaAgentError):
    """The device, a compiler or a library is missing."""

    exit_code = 4


class SandboxError(CudaAgentError):
    """The wanted isolation isn't available on this machine."""

    exit_code = 5


class StoreError(CudaAgentError):
    """A file can't be read or written: no space, no permission, another schema version, held by another process."""

    exit_code = 6


class PolicyError(CudaAgentError):
    """The policy that chooses the next action failed permanently."""

    exit_code = 7


class PolicyStalled(PolicyError):
    """The policy answers but no longer acts: its answers are empty, invalid or always the same call. The best candidate
    so far still counts."""


class WorkerError(CudaAgentError):
    """A trusted worker (reference, baseline) ended or broke its protocol."""

    exit_code = 8


class NotCovered(CudaAgentError):
    """No skill of the playbook covers these operators, so there is no candidate."""

    exit_code = 10


class LockMismatch(CudaAgentError):
    """This machine isn't the locked stack, so its numbers can't be compared."""

    exit_code = 11


class KeepOriginal(CudaAgentError):
    """What passed isn't faster than the original in the fastest form of the library, so the original stays."""

    exit_code = 15


#: The other exit codes of a command.
EXIT_OK = 0
EXIT_NOT_PASSED = 9
#: the playbook's own kernel doesn't compile or isn't right.
EXIT_PLAYBOOK_FAILED = 14
EXIT_INTERRUPTED = 130
