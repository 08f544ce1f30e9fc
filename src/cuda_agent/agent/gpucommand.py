"""Runs the `gpu` commands of the agent's shell: one at a time, in the workspace's sandbox with the GPU's device files,
under the GPU's lock and for a bounded time."""

import codecs
import json
import select
import shlex
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from cuda_agent.agent import gpuclient
from cuda_agent.core.enums import Device
from cuda_agent.core.errors import CudaAgentError
from cuda_agent.workspace.sandbox import SandboxSpec, spawn
from cuda_agent.workspace.sockets import bound_socket

MAX_SECONDS = 300.0
_REQUEST_BYTES = 1 << 20
_PIECE_BYTES = 1 << 16
_LOOK_S = 0.05

#: lock(waiting, given_up) holds the GPU during the block. It calls waiting(holder) once if it has to wait, and gives up
#: when given_up() is true.
Lock = Callable[[Callable[[str], None], Callable[[], bool]], AbstractContextManager[None]]


class GpuCommands:
    """Answers `gpu` commands at a socket, in its own thread. `held_s` counts the seconds for which it held the GPU."""

    def __init__(self, spec: SandboxSpec, workspace: Path, folder: Path, logs: Path, lock: Lock) -> None:
        """The socket lies in `folder`. The output of commands goes to `logs`, which the shell can't see. `spec` is the
        sandbox of the shell."""
        self._spec = replace(spec, gpu=True)
        self._workspace, self._logs, self._lock = workspace, logs, lock
        self._count = 0
        self._stop = threading.Event()
        self.path = folder / "gpu.sock"
        self.held_s = 0.0
        self._socket = bound_socket(self.path)
        self._thread = threading.Thread(target=self._serve, name="gpu-commands", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops answering and ends a command that still runs."""
        self._stop.set()
        with suppress(OSError):
            # Wakes the thread that waits for a connection.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()
        self.path.unlink(missing_ok=True)

    def _serve(self) -> None:
        while not self._stop.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            # The client may have gone away.
            with connection, suppress(OSError, ValueError):
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(10.0)
        stream = connection.makefile("rwb")

        def send(**message: object) -> None:
            stream.write(json.dumps(message).encode() + b"\n")
            stream.flush()

        asked = json.loads(stream.readline(_REQUEST_BYTES))
        command = [str(part) for part in asked["command"]]
        seconds = min(float(asked["seconds"]), MAX_SECONDS)
        try:
            with self._lock(
                lambda holder: send(note=f"waiting for the GPU, held by {holder}"),
                lambda: self._stop.is_set() or _is_gone(connection),
            ):
                started = time.monotonic()
                try:
                    code = self._run(command, self._folder_of(str(asked["cwd"])), seconds, connection, send)
                finally:
                    self.held_s += time.monotonic() - started
        except CudaAgentError as error:
            send(note=str(error))
            code = 2
        send(exit=code)

    def _folder_of(self, wanted: str) -> Path:
        """Returns the caller's folder if it is inside the workspace, else the workspace."""
        path = Path(wanted).resolve()
        return path if path.is_relative_to(self._workspace) and path.is_dir() else self._workspace

    def _run(
        self, command: list[str], cwd: Path, seconds: float, connection: socket.socket, send: Callable[..., None]
    ) -> int:
        self._count += 1
        log = self._logs / f"gpu-{self._count}.log"
        deadline = time.monotonic() + seconds
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        with spawn(command, self._spec, cwd=cwd, log=log) as process, log.open("rb") as printed:
            while True:
                code = process.poll()
                while piece := printed.read(_PIECE_BYTES):
                    send(output=decode(piece))
                if code is not None:
                    break
                if self._stop.is_set() or _is_gone(connection):
                    return 130
                if time.monotonic() > deadline:
                    send(note=f"ended after {seconds:g} s; ask for more with --seconds (at most {MAX_SECONDS:g})")
                    return 124
                time.sleep(_LOOK_S)
            if process.limit_hit is not None:
                send(note=f"ended: limit of {process.limit_hit} reached")
            return code if code >= 0 else 128 - code


def _is_gone(connection: socket.socket) -> bool:
    """Whether the client has closed its end, because the caller of `gpu` was ended."""
    if not select.select([connection], [], [], 0)[0]:
        return False
    return connection.recv(1, socket.MSG_PEEK) == b""


@contextmanager
def gpu_commands(
    device: Device, spec: SandboxSpec, workspace: Path, folder: Path, logs: Path
) -> Iterator[GpuCommands | None]:
    """Makes the command `gpu` in `folder/bin` and yields its server. On the CPU the command only says that there is no
    GPU. The shell needs the variables of `environment`."""
    shim = folder / "bin" / "gpu"
    shim.parent.mkdir()
    client = shlex.join([sys.executable, "-I", "-S", gpuclient.__file__])
    said = "gpu: the device of this workspace is cpu: there is no GPU. Run the command itself."
    runs = f'exec {client} "$@"' if device is Device.CUDA else f"echo '{said}' >&2\nexit 2"
    shim.write_text(f"#!/bin/sh\n{runs}\n")
    shim.chmod(0o555)
    if device is not Device.CUDA:
        yield None
        return
    from cuda_agent.workers.gpulock import gpu_lock, gpu_uuid

    server = GpuCommands(
        spec, workspace, folder, logs,
        lambda waiting, given_up: gpu_lock(gpu_uuid(device) or "cpu", waiting=waiting, given_up=given_up),
    )  # fmt: skip
    try:
        yield server
    finally:
        server.close()


def environment(folder: Path, path: str) -> dict[str, str]:
    """Returns the variables by which a shell finds the command, and the command its server."""
    return {"PATH": f"{folder / 'bin'}:{path}", gpuclient.VARIABLE: str(folder / "gpu.sock")}
