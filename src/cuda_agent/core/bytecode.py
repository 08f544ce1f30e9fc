"""Compiled Python for installations of torch that came without, such as images made with PYTHONDONTWRITEBYTECODE.

Every process would compile thousands of modules again: 3.1 s instead of 1.9 s for torch, 10.1 s instead of 4.0 s with
its compiler (H200 machine, 2026-11-21), 6 to 8 s instead of 2.4 for a model of transformers. A folder in our cache
takes Python's own bytecode files, made once by a process that runs nothing but these imports. Workers read it and can't
write it.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import subprocess
import sys
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from cuda_agent.core.errors import StoreError
from cuda_agent.core.files import cache_dir
from cuda_agent.core.hashing import digest_text

_DONE, _LOCK = "complete", "lock"
#: what workers import, the compiler's parts that it imports when first used included, and what tasks mostly do.
_MODULES = (
    "torch", "torch._dynamo", "torch.export", "torch._inductor.compile_fx", "torch._inductor.codegen.triton",
    "torch._inductor.codegen.cpp", "torch._inductor.codegen.cuda_combined_scheduling",
    "torch._inductor.runtime.triton_heuristics", "torch._inductor.fx_passes.post_grad", "triton.language",
    "triton.compiler", "cuda_agent.workers.inside.reference", "cuda_agent.workers.inside.baseline",
    "cuda_agent.workers.inside.candidate", "transformers.models.bert.modeling_bert",
    "transformers.models.llama.modeling_llama", "transformers.models.clip.modeling_clip",
)  # fmt: skip
_IMPORT = """
import importlib, os, sys
os.nice(10)
sys.dont_write_bytecode = False
for name in sys.argv[2:]:
    try:
        importlib.import_module(name)
    except ImportError:
        pass
open(sys.argv[1], "w").close()
"""


@lru_cache(maxsize=1)
def folder() -> Path | None:
    """Where bytecode is to be looked for; None where torch's lies beside its sources, as usual, or no cache can be
    had."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return None
    usual = Path(found.origin).parent / "__pycache__"
    if usual.is_dir() or sys.pycache_prefix not in (None, ""):
        return None
    try:
        name = digest_text(sys.version, metadata.version("torch"), _transformers(), found.origin)[:16]
        path = cache_dir() / "bytecode" / name
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, StoreError):
        return None
    return path


def _transformers() -> str:
    """Its version, "" where there is none."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version("transformers")
    return ""


def use() -> None:
    """Let this process read the folder, where it is complete. Before torch is imported."""
    path = folder()
    if path is not None and (path / _DONE).exists():
        sys.pycache_prefix = str(path)


def environment() -> dict[str, str]:
    """What lets a worker read the folder."""
    path = folder()
    return {} if path is None else {"PYTHONPYCACHEPREFIX": str(path)}


def fill() -> subprocess.Popen[bytes] | None:
    """Start to fill the folder in the background; None where there is nothing to do, or another process is at it. The
    caller ends the process."""
    path = folder()
    if path is None or (path / _DONE).exists():
        return None
    command = [sys.executable, "-P", "-c", _IMPORT, str(path / _DONE), *_MODULES]
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with contextlib.suppress(OSError), (path / _LOCK).open("w") as lock:
        # Held for as long as the process lives.
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
