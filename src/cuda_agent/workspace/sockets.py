"""Unix sockets at paths of any length. The kernel takes 107 bytes; a longer path is named by its folder's
descriptor."""

from __future__ import annotations

import os
import signal
import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

#: the kernel's flag for a socket that accepts connections.
_LISTENS = 1 << 16
_LONGEST = 107


@contextmanager
def _short(path: Path) -> Iterator[str]:
    # The kernel lists the name that it was given, so a path that is short enough stays as it is.
    if len(os.fsencode(path.absolute())) <= _LONGEST:
        yield str(path.absolute())
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def bound_socket(path: Path) -> socket.socket:
    """Returns a listening socket at `path` that only this user can connect to. Replaces a socket that was left there.

    Raises OSError.
    """
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


def listening_sockets(*, outside: Iterable[Path] = ()) -> set[Path]:
    """Returns the paths of the machine's listening Unix sockets that this process can see. A process can connect to a
    socket on a read-only file system too.

    Sockets below the folders of `outside` are left out before the disk is asked: every open episode has one.
    """
    try:
        lines = Path("/proc/net/unix").read_text().splitlines()[1:]
    except OSError:
        return set()
    known = tuple(f"{folder}/" for folder in outside)
    fields = [
        line.split(maxsplit=7) for line in lines if (at := line.find("/")) >= 0 and not line.startswith(known, at)
    ]
    paths = {Path(row[7]) for row in fields if len(row) == 8 and int(row[3], 16) & _LISTENS and row[7].startswith("/")}
    return {path for path in paths if path.is_socket()}


def end_server(client: socket.socket) -> None:
    """Sends SIGTERM to the process at the other end."""
    raw = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid = struct.unpack("3i", raw)[0]
    with suppress(OSError):
        os.kill(pid, signal.SIGTERM)


def connected_socket(path: Path) -> socket.socket | None:
    """Returns a connection to the server at `path`, or None when no process listens there."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short(path) as name:
            client.connect(name)
    except OSError:
        client.close()
        return None
    return client
