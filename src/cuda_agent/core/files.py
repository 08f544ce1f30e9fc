"""Writes files completely or not at all, so that they survive a kill; locks files; says whether a path is free; finds
the cache and unused names."""

import contextlib
import errno
import fcntl
import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from cuda_agent.core.errors import StoreError, UsageError


def write_durably(path: Path, data: str | bytes) -> None:
    """Writes a temporary file beside the path, syncs it and renames it. Raises StoreError (no space, no permission)."""
    raw = data.encode() if isinstance(data, str) else data
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "wb") as stream:
            stream.write(raw)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)
        raise _refused(path, error) from None


def write_folder(target: Path, files: Mapping[str, str], remedy: str) -> None:
    """Writes path -> text as a new folder, whole or not at all. Replaces an empty folder. Raises StoreError, with
    `remedy` for the user."""
    staging = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".new-", dir=target.parent))
        for path, text in files.items():
            write_durably(staging / path, text)
        staging.chmod(0o755)
        staging.rename(target)
    except OSError as error:
        raise StoreError(f"Can't write {target}: {error.strerror}", remedy) from None
    finally:
        if staging is not None:
            shutil.rmtree(staging, ignore_errors=True)


def check_unused(folder: Path) -> None:
    """Raises UsageError where the path is a file or a folder that isn't empty."""
    if folder.is_dir() and any(folder.iterdir()):
        raise UsageError(f"{folder} isn't empty", "Choose another folder, or remove it")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file", "Choose another folder")


def check_writable(path: Path) -> None:
    """Raises StoreError where the path can't be written or made."""
    above = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    if not os.access(above, os.W_OK):
        raise StoreError(f"{path} can't be written", "Choose a folder that can be written")


def append_lines(path: Path, lines: Iterable[str]) -> None:
    """Appends lines durably, one process at a time, and removes a last line that a kill cut short. Raises
    StoreError."""
    text = "".join(f"{line}\n" for line in lines)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            stream.truncate(_whole_lines(stream))
            stream.write(text.encode())
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        raise _refused(path, error) from None


def _refused(path: Path, error: OSError) -> StoreError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    remedy = "Free some space or choose another folder" if full else "Choose a folder that can be written"
    return StoreError(f"Can't write {path}: {error.strerror}", remedy)


def _whole_lines(stream: BinaryIO) -> int:
    """Returns how many bytes of a file are complete lines."""
    end = stream.seek(0, os.SEEK_END)
    while end:
        begin = max(0, end - (1 << 16))
        stream.seek(begin)
        found = stream.read(end - begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0


@contextlib.contextmanager
def locked(path: Path, *, patience_s: float = 1.0) -> Iterator[None]:
    """Holds the lock of a file, which has the number of this process meanwhile. The lock ends with the process, or when
    a child that was just started at its death has called `exec`. Raises StoreError if another process still holds it
    after `patience_s` seconds."""
    end = time.monotonic() + patience_s
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise _refused(path, error) from None
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "another one"
                    raise StoreError(f"{path.parent} is in use by process {holder}", "Wait for it, or end it") from None
            time.sleep(0.05)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def cache_dir(*parts: str) -> Path:
    """Returns a folder inside `$CUDA_AGENT_CACHE`, else `$XDG_CACHE_HOME/cuda-agent`, else `~/.cache/cuda-agent`, and
    creates it. Raises StoreError."""
    base = os.environ.get("CUDA_AGENT_CACHE")
    path = Path(base) if base else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cuda-agent"
    path = path.joinpath(*parts)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"Can't create the cache {path}: {error.strerror}", "Set CUDA_AGENT_CACHE") from None
    return path


def unused(name: str, is_used: Callable[[str], bool], joint: str = "-") -> str:
    """Returns the name, with a number from 2 on where it is used."""
    numbered = (f"{name}{joint}{number}" for number in itertools.count(2))
    return next(one for one in itertools.chain((name,), numbered) if not is_used(one))
