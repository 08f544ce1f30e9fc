"""A lock for one timing per GPU at a time, which every process of this machine respects."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from cuda_agent.core.enums import Device
from cuda_agent.core.errors import DeviceError

_SHARED = Path("/tmp")


def lock_path(uuid: str) -> Path:
    """Returns the lock's file for a GPU's UUID (or `cpu`). It ignores TMPDIR, since processes with different ones share
    the GPU."""
    word = "".join(c if c.isalnum() or c == "-" else "_" for c in uuid)
    folder = _SHARED if os.access(_SHARED, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())
    return folder / f"cuda-agent-{word}.lock"


def gpu_uuid(device: Device) -> str | None:
    """Returns the UUID of torch's GPU in NVML's spelling, or None on the CPU."""
    if device is not Device.CUDA:
        return None
    import torch

    return "GPU-" + str(torch.cuda.get_device_properties(0).uuid).removeprefix("GPU-")


@contextlib.contextmanager
def gpu_lock(
    uuid: str,
    *,
    timeout_s: float = 1800.0,
    waiting: Callable[[str], None] | None = None,
    given_up: Callable[[], bool] = lambda: False,
    path: Path | None = None,
) -> Iterator[None]:
    """Holds the GPU's timing lock. The system releases it when the process ends; child processes don't inherit it.

    `waiting` is called once with the holder where the lock isn't free. Raises DeviceError after `timeout_s` seconds, or
    as soon as `given_up` returns true.
    """
    path, end = path or lock_path(uuid), time.monotonic() + timeout_s
    descriptor = _open(path)
    try:
        while not _is_taken(descriptor):
            holder = os.pread(descriptor, 64, 0).decode(errors="replace").strip() or "another process"
            if waiting is not None:
                waiting(holder)
                waiting = None
            if time.monotonic() > end or given_up():
                cause = f"The GPU's timing lock {path} is held by {holder}"
                raise DeviceError(cause, "Wait for it, or end that process")
            time.sleep(0.05)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def claimed(word: str) -> int | None:
    """Returns a descriptor that holds a lock of this machine until it is closed or the process ends. Returns None where
    another process holds the lock, or where it can't be opened."""
    with contextlib.suppress(DeviceError, OSError):
        descriptor = _open(lock_path(word))
        if _is_taken(descriptor):
            return descriptor
        os.close(descriptor)
    return None


def _is_taken(descriptor: int) -> bool:
    """Takes the lock. Returns False where another process holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open(path: Path) -> int:
    """Opens or creates the file, which other users may open too. Links are not followed."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise DeviceError(f"Can't open the GPU's lock {path}: {error.strerror}", f"Remove {path}") from None
    with contextlib.suppress(OSError):
        os.fchmod(descriptor, 0o666)
    return descriptor
