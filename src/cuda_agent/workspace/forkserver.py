"""The judge's side of a fork server: a trusted process that has imported what many sandboxed programs need.

It forks for each of them, and the fork joins a sandbox that bubblewrap has made (`forked.py`). It has a closed
environment, runs no code of a task, and ends with this process. A server that has ended is started again by the next
request; the programs that it had forked end with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from cuda_agent.core.assets import program
from cuda_agent.core.errors import SandboxError

_SEND_TIMEOUT_S = 30.0
_spawners: dict[int, ThreadPoolExecutor] = {}


def popen(argv: list[str], **options: Any) -> subprocess.Popen[bytes]:
    """Starts a process from a thread that lives as long as this process. With "die with parent" the kernel means the
    parent's *thread*."""
    spawner = _spawners.get(os.getpid())
    if spawner is None:
        spawner = _spawners.setdefault(os.getpid(), ThreadPoolExecutor(1, thread_name_prefix="spawn"))
    return spawner.submit(lambda: subprocess.Popen(argv, **options)).result()


def confined(restrictions: Mapping[str, object], command: Sequence[str]) -> list[str]:
    """Returns the command that confines itself by `confine.py` before it begins."""
    script = Path(__file__).with_name("confine.py")
    return [sys.executable, "-I", "-S", str(script), json.dumps(restrictions), *command]


class ForkServer:
    """Starts its process at the first request."""

    def __init__(self, module: str, environment: Mapping[str, str], *, small_pages: bool) -> None:
        """`module` offers `prepare(program)`, which imports, and `run(program, descriptors)`, for each fork. Variables
        that are read while something is imported must be in `environment`."""
        self._module, self._environment, self._small_pages = module, dict(environment), small_pages
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def ask(self, request: Mapping[str, object], descriptors: Sequence[int]) -> None:
        """Sends a request and doesn't wait for it. Where the server ends first, the sandbox ends. Raises
        SandboxError."""
        raw = json.dumps(request).encode()
        with self._lock:
            for _ in range(2):
                try:
                    socket.send_fds(self._connected(), [raw], list(descriptors))
                    return
                except OSError:
                    self._drop()
        raise SandboxError("The workers' fork server doesn't start", "Check memory and process limits")

    def _connected(self) -> socket.socket:
        if self._socket is None:
            mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            mine.settimeout(_SEND_TIMEOUT_S)
            # All programs that are timed against each other have its addresses and pages.
            options = {"fixed_addresses": True, "small_pages": self._small_pages}
            number = str(theirs.fileno())
            with theirs:
                command = program("cuda_agent.workspace.forked", number, str(os.getpid()), self._module)
                self._process = popen(
                    confined(options, command),
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/",
                    env=self._environment, pass_fds=(theirs.fileno(),), start_new_session=True,
                )  # fmt: skip
            self._socket = mine
        return self._socket

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_SEND_TIMEOUT_S)
        self._socket = self._process = None
