"""Compiles Python for installations of torch without bytecode, such as images made with PYTHONDONTWRITEBYTECODE.

Without bytecode, every process compiles thousands of modules again and needs two to three times as long to import
torch. A process that runs only these imports writes Python's bytecode files to a folder in the cache. Workers can read
this folder but can't write to it.
"""

import contextlib
import fcntl
import importlib.util
import os
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

from cuda_agent.core.assets import tables, words
from cuda_agent.core.errors import StoreError
from cuda_agent.core.files import cache_dir
from cuda_agent.core.hashing import digest_text
from cuda_agent.core.stack import package_version

_DONE, _LOCK = "complete", "lock"


def modules(*kinds: str) -> list[str]:
    """Returns the modules of these kinds in `bytecode.yaml`, by default all."""
    return [name for kind in kinds or tables(__file__) for name in words(__file__, kind)]


@lru_cache(maxsize=1)
def folder() -> Path | None:
    """Returns the folder for bytecode, or None where torch has bytecode beside its sources or there is no cache."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return None
    usual = Path(found.origin).parent / "__pycache__"
    if usual.is_dir() or sys.pycache_prefix not in (None, ""):
        return None
    try:
        versions = package_version("torch") or "", package_version("transformers") or ""
        return cache_dir("bytecode", digest_text(sys.version, *versions, found.origin)[:16])
    except (OSError, StoreError):
        return None


def use() -> None:
    """Makes this process read the folder if it is complete. Call it before torch is imported."""
    path = folder()
    if path is not None and (path / _DONE).exists():
        sys.pycache_prefix = str(path)


def environment() -> dict[str, str]:
    """Returns the variables that make a worker read the folder."""
    path = folder()
    return {} if path is None else {"PYTHONPYCACHEPREFIX": str(path)}


def fill() -> subprocess.Popen[bytes] | None:
    """Starts to fill the folder in the background. Returns None where it is complete or another process fills it. The
    caller ends the process."""
    path = folder()
    if path is None or (path / _DONE).exists():
        return None
    program = Path(__file__).with_suffix(".txt").read_text()
    command = [sys.executable, "-P", "-c", program, str(path / _DONE), *modules()]
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with contextlib.suppress(OSError), (path / _LOCK).open("w") as lock:
        # The process holds the lock until it ends.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return subprocess.Popen(
            command,
            env=inherited | environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=path,
            pass_fds=(lock.fileno(),),
        )
    return None
