"""Temporary folders, each locked while its process lives. The next process removes the folder of a killed one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from cuda_agent.core.errors import StoreError

PREFIX = "cuda-agent."
_LOCK = "in-use.lock"
#: seconds for which a folder without a lock is kept, since its process may be about to lock it.
_GRACE_S = 60.0


@contextlib.contextmanager
def temporary_folder(purpose: str, within: Path | None = None) -> Iterator[Path]:
    """Makes a folder, and removes it after the block. Also removes those of killed processes. Raises StoreError."""
    within = within or Path(tempfile.gettempdir())
    remove_stale(within)
    try:
        folder, lock = _locked(purpose, within)
    except OSError as error:
        raise StoreError(
            f"Can't create a temporary folder: {error.strerror}", "Free some space, or set TMPDIR"
        ) from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _locked(purpose: str, within: Path) -> tuple[Path, int]:
    """Makes a folder with a held lock. Another process may find the lock before it is held, and remove the folder."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{purpose}.", dir=within))
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / _LOCK).exists():
            return folder, lock
        os.close(lock)


def remove_stale(within: Path) -> list[Path]:
    """Removes and returns this user's folders there whose process has ended. A lock ends with its process; process
    numbers would be ambiguous where containers share /tmp."""
    removed = []
    for folder in within.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if not folder.is_symlink() and folder.stat().st_uid == os.getuid() and _remove_abandoned(folder):
                removed.append(folder)
    return removed


def _remove_abandoned(folder: Path) -> bool:
    """Removes the folder unless its process lives, and returns whether it did. Raises OSError."""
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        if time.time() - folder.stat().st_mtime <= _GRACE_S:
            return False
        shutil.rmtree(folder, ignore_errors=True)
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True
