"""Unix sockets at paths of any length: the kernel takes 107 bytes, a folder's descriptor makes every path short."""

from __future__ import annotations

import os
import signal
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def _short(path: Path) -> Iterator[str]:
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def bound_socket(path: Path) -> socket.socket:
    """A listening socket at `path`, readable by this user alone; one that is left over there is replaced."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)
        with _short(path) as name:
            listener.bind(name)
        path.chmod(0o600)
        listener.listen(8)
    except OSError:
        listener.close()
        raise
    return listener


def end_server(client: socket.socket) -> None:
    """Ask the process at the other end to stop what it does and to leave."""
    raw = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid = struct.unpack("3i", raw)[0]
    with suppress(OSError):
        os.kill(pid, signal.SIGTERM)


def connected_socket(path: Path) -> socket.socket | None:
    """A connection to the server at `path`, None when nobody listens there."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short(path) as name:
            client.connect(name)
    except OSError:
        client.close()
        return None
    return client
