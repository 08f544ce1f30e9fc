"""A worker's main, with the arguments MODULE and FD, in a process of its own or in a fork of a fork server.

It imports torch (only the request `Start` starts CUDA), says hello, then answers one request after the other until the
judge's end of the socket closes. MODULE is that of a role (`workers.roles`): its `create(context)` returns the role's
operations, which answer the requests (`workers.requests`).
"""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import sys
import tempfile
import traceback
from typing import Any

import numpy
import torch

from cuda_agent.core.enums import Device
from cuda_agent.workers.buffers import SMALL_CONTEXT, Attached, synchronize
from cuda_agent.workers.channel import ChannelClosed, Received, WorkerChannel
from cuda_agent.workers.inside.compilations import cuda_has_started, warm_compiler
from cuda_agent.workers.inside.failures import kind_of, words_of
from cuda_agent.workers.inside.imports import importing
from cuda_agent.workers.requests import (
    Attach,
    Detach,
    Done,
    Operations,
    Start,
    TensorRefs,
    WorkerAnswer,
    WorkerRequest,
    operations_of,
)
from cuda_agent.workers.roles import worker_command

#: whether forks of this process can use the device.
_forks = False


class Context:
    """The common state of every role: the device and the arenas that the judge has passed in."""

    def __init__(self, control: int | None = None) -> None:
        """`control` is the descriptor of the judge's socket."""
        self.device = Device.CPU
        self.arenas: dict[str, Attached] = {}
        self.control = control
        #: seconds for which it waits for the next request without sleep; see `requests.timed.GetReady`.
        self.spin_s = 0.0
        #: descriptors of the present request. The operation that takes them closes them.
        self.descriptors: tuple[int, ...] = ()

    def tensors(self, refs: TensorRefs) -> list[Any]:
        """Returns the tensors, in order."""
        return self.arenas[refs.arena].tensors(refs.slots)

    def start(self, request: Start) -> Done:
        self.device = request.device
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, set(request.cores) & os.sched_getaffinity(0))
        if self.device is Device.CUDA:
            if request.small_context:
                os.environ.update(SMALL_CONTEXT)
            torch.cuda.init()
            torch.zeros(1, device="cuda")
            synchronize(self.device)
        return Done()

    def attach(self, request: Attach) -> Done:
        self.arenas[request.arena] = Attached(request, self.descriptors)
        return Done()

    def detach(self, request: Detach) -> Done:
        memory = self.arenas.pop(request.arena)
        synchronize(self.device)
        memory.detach()
        return Done()


def serve(channel: WorkerChannel, context: Context, operations: Operations) -> None:
    """Answers until the judge has ended."""
    own = {**operations_of(context.start, context.attach, context.detach), **operations}
    known = {kind.__name__: kind for kind in own}
    while True:
        try:
            received = channel.receive(spin_s=context.spin_s)
            try:
                channel.answer(received.id, _answer(context, own, known[received.op], received))
            except ChannelClosed:
                raise
            except BaseException as error:  # noqa: BLE001 - the boundary to code that isn't ours, which may call exit()
                sys.stderr.write("".join(traceback.format_exception(error))[-16384:])
                sys.stderr.flush()
                channel.fail(received.id, kind_of(error), *words_of(error))
        except ChannelClosed:
            return


def _answer(
    context: Context, operations: Operations, kind: type[WorkerRequest[Any]], received: Received
) -> WorkerAnswer:
    context.descriptors = received.descriptors
    answer = operations[kind](kind.model_validate(received.params))
    synchronize(context.device)
    return answer


def main() -> None:
    """Runs a worker in a process of its own."""
    role, descriptor = sys.argv[1:]
    _run(role, int(descriptor))


def prepare(program: list[str]) -> None:
    """Imports a role in a fork server, and the compiler where it names a device for that."""
    global _forks
    role, *compiles_for = program
    if role not in sys.modules:
        with importing():
            importlib.import_module(role)
            for device in compiles_for:
                warm_compiler(Device(device))
        _forks = not cuda_has_started()


def run(program: list[str], descriptors: list[int]) -> None:
    """Runs a worker in a fork."""
    role, (descriptor,) = program[0], descriptors
    if not _forks:
        os.set_inheritable(descriptor, True)
        os.execv(sys.executable, worker_command(role, descriptor))
    # Python's own generator has a new seed after a fork, but this one would draw the same numbers in every fork.
    numpy.random.seed()
    tempfile.tempdir = None
    _run(role, descriptor)


def _run(role: str, descriptor: int) -> None:
    sock = socket.socket(fileno=descriptor)
    sock.set_inheritable(False)
    with importing():
        module = importlib.import_module(role)
    context = Context(sock.fileno())
    operations = module.create(context)
    channel = WorkerChannel(sock)
    try:
        channel.answer(0, Done())
    except ChannelClosed:
        return
    serve(channel, context, operations)
    # This avoids the interpreter's end, since foreign code may have left threads and exit handlers.
    sys.stderr.flush()
    os._exit(0)
