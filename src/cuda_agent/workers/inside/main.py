"""A worker's main: `python -m cuda_agent.workers.inside.main MODULE FD`.

Imports torch before anything is asked (CUDA is started only by `start`), says hello, then answers one request after
the other until the judge's end of the socket closes. MODULE is that of a role (`workers.roles`): it offers
`create(context)`, which returns the role's operations, name -> function of the request's parameters that returns what
JSON can hold.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import socket
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from cuda_agent.core.enums import Device
from cuda_agent.core.errors import CudaAgentError, OutOfMemory
from cuda_agent.workers.buffers import SMALL_CONTEXT, Attached, OutOfDeviceMemory, Slot, synchronize
from cuda_agent.workers.channel import ChannelClosed, Request, WorkerChannel

Operation = Callable[[dict[str, Any]], Any]

#: texts of torch, the C++ library, cuBLAS and cuDNN, which raise no type of their own for a lack of memory.
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
    """An operation that ends with a named failure: `kind` is `load`, `structure`, `raised`, `oom`, `device` or
    `task`."""

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(message)


class Context:
    """What every role of a worker shares: the device and the arenas that the judge has passed in."""

    def __init__(self, control: int | None = None) -> None:
        """`control`: the descriptor of the socket on which the judge asks."""
        self.device = Device.CPU
        self.arenas: dict[str, Attached] = {}
        self.control = control
        #: for how long it waits for the next request without sleep; see `timed.ready`.
        self.spin_s = 0.0
        #: came with the request that is being answered; whoever takes them closes them.
        self.descriptors: tuple[int, ...] = ()

    def tensors(self, arena: str, layout: Iterable[dict[str, Any]]) -> list[Any]:
        """Tensors over the slots of an attached arena, in order."""
        memory = self.arenas[arena]
        return [memory.tensor(Slot.from_wire(wire)) for wire in layout]

    def start(self, params: dict[str, Any]) -> dict[str, Any]:
        """Chooses the device and wakes it up, on the given cores if the system allows them; none given: anywhere. With
        `small_context` it has one connection to the device."""
        self.device = Device(params["device"])
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, set(params.get("cores", ())) & os.sched_getaffinity(0))
        if self.device is Device.CUDA:
            if params.get("small_context"):
                os.environ.update(SMALL_CONTEXT)
            import torch

            torch.cuda.init()
            torch.zeros(1, device="cuda")
            synchronize(self.device)
        return {}

    def attach(self, params: dict[str, Any], descriptors: tuple[int, ...]) -> dict[str, Any]:
        self.arenas[params["arena"]] = Attached(params, descriptors)
        return {}

    def detach(self, params: dict[str, Any]) -> dict[str, Any]:
        """The role lets go of tensors over an arena before the judge asks for this."""
        memory = self.arenas.pop(params["arena"])
        synchronize(self.device)
        memory.detach()
        return {}


def serve(channel: WorkerChannel, context: Context, operations: Mapping[str, Operation]) -> None:
    """Answers until the judge is gone."""
    while True:
        try:
            request = channel.receive(spin_s=context.spin_s)
            failure = _answer(channel, context, operations, request)
            if failure is not None:
                channel.fail(request.id, *failure)
        except ChannelClosed:
            return


def _answer(
    channel: WorkerChannel, context: Context, operations: Mapping[str, Operation], request: Request
) -> tuple[str, str] | None:
    """Sends the answer, or returns the failure as (kind, message)."""
    try:
        context.descriptors = request.descriptors
        if request.op in operations:
            value: Any = operations[request.op](request.params)
            synchronize(context.device)
        elif request.op == "attach":
            value = context.attach(request.params, request.descriptors)
        elif request.op in ("start", "detach"):
            value = getattr(context, request.op)(request.params)
        else:
            raise KeyError(request.op)
        channel.answer(request.id, value)
    except ChannelClosed:
        raise
    except BaseException as error:  # noqa: BLE001 - the boundary to code that isn't ours, which may even call exit()
        sys.stderr.write("".join(traceback.format_exception(error))[-16384:])
        sys.stderr.flush()
        return classify(error)
    return None


def classify(error: BaseException) -> tuple[str, str]:
    """(kind, one readable text) of whatever an operation raised."""
    if isinstance(error, Refusal):
        return error.kind, str(error)
    if isinstance(error, OutOfMemory):
        return "oom", f"{error.cause}\n{error.remedy}"
    if isinstance(error, CudaAgentError):
        return "task", f"{error.cause}\n{error.remedy}"
    text = str(error)
    no_memory = any(words in text for words in _OUT_OF_MEMORY)  # foreign text: torch's
    if no_memory or isinstance(error, MemoryError | OutOfDeviceMemory):
        return "oom", first_lines(error)
    if any(words in text for words in _DEVICE_BROKEN):  # foreign text: CUDA's
        return "device", first_lines(error)
    return "raised", first_lines(error)


def first_lines(error: BaseException, count: int = 6) -> str:
    """`Type: message`, at most `count` lines of it."""
    lines = [line for line in str(error).splitlines() if line.strip()][:count]
    return f"{type(error).__name__}: " + "\n".join(lines)


def main(arguments: list[str]) -> int:
    role, descriptor = arguments
    sock = socket.socket(fileno=int(descriptor))
    sock.set_inheritable(False)
    import torch

    module = importlib.import_module(role)
    context = Context(sock.fileno())
    operations = module.create(context)
    channel = WorkerChannel(sock)
    # What torch is made of stays; a collection that walks over it takes 0.2 s.
    gc.collect()
    gc.freeze()
    try:
        channel.hello({"role": role, "pid": os.getpid(), "torch": str(torch.__version__)})
    except ChannelClosed:
        return 0
    serve(channel, context, operations)
    # Not through the interpreter's end: code that isn't ours may have left threads and exit handlers behind.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    # The roles import this module by its name; run that one, so that there is one class of each kind.
    from cuda_agent.workers.inside.main import main as run

    raise SystemExit(run(sys.argv[1:]))
