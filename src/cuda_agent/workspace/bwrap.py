"""Bubblewrap: own namespaces, and a read-only view of the machine without hidden paths."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

NAMESPACES = (
    "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
)  # fmt: skip
_GPU_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "nvidia-caps")
MIB = 1 << 20

#: Ways to give the sandbox a /proc, best first. Inside another sandbox no new /proc can be mounted. The outer one shows
#: the names of other processes, but the new user namespace still forbids to trace, read or signal them.
_PROC_FORMS = (("--proc", "/proc"), ("--ro-bind", "/proc", "/proc"))


def find_bwrap() -> str | None:
    """Returns `$CUDA_AGENT_BWRAP`, else `bwrap` on PATH; None where it isn't an executable file."""
    named = os.environ.get("CUDA_AGENT_BWRAP")
    return (named if os.access(named, os.X_OK) else None) if named else shutil.which("bwrap")


@lru_cache(maxsize=8)
def probe(binary: str) -> tuple[tuple[str, ...] | None, str]:
    """Runs bubblewrap. Returns (the arguments that mount /proc, ""), or (None, why bubblewrap doesn't run here)."""
    reason = ""
    for form in _PROC_FORMS:
        command = [
            binary, *NAMESPACES, "--ro-bind", "/", "/", *form, "--dev", "/dev", "--size", str(MIB),
            "--tmpfs", "/tmp", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "/bin/sh", "-c", "exit 0",
        ]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return None, str(error)
        if done.returncode == 0:
            return form, ""
        reason = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit code {done.returncode}"
    return None, reason


def gpu_nodes() -> list[str]:
    """Returns the device files of the NVIDIA driver."""
    numbered = sorted(str(path) for path in Path("/dev").glob("nvidia[0-9]*"))
    return numbered + [f"/dev/{name}" for name in _GPU_NODES if os.path.exists(f"/dev/{name}")]


def mounts(hidden: Iterable[Path], readable: Iterable[Path], writable: Iterable[Path]) -> list[str]:
    """Returns the arguments that hide and mount paths. A deeper path comes later, so that it wins over its parents."""
    what: dict[Path, str] = {}
    for kind, paths in (("hide", hidden), ("read", readable), ("write", writable)):
        what |= dict.fromkeys(paths, kind)
    arguments: list[str] = []
    emptied: list[str] = []
    for path in sorted(what, key=lambda item: (len(item.parts), str(item))):
        if not path.exists():
            continue
        name, kind = str(path), what[path]
        if kind == "hide" and path.is_dir():
            arguments += ["--perms", "0555", "--size", str(MIB), "--tmpfs", name]
            emptied.append(name)
        elif kind == "hide":
            arguments += ["--ro-bind", "/dev/null", name]
        else:
            arguments += ["--bind" if kind == "write" else "--ro-bind", name, name]
    for name in emptied:
        arguments += ["--remount-ro", name]
    return arguments
