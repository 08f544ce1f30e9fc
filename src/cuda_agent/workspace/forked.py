"""A fork server's own process: it forks for each request, and the fork becomes a program in a sandbox.

There are two forks, since a process enters a PID namespace only by a fork: the first joins the sandbox's namespaces and
stays outside as the program's parent, which tells its exit code; the second is the program. Without namespaces (level
`reduced`) the first is the program's supervisor. Nothing that runs code of a task ever returns to the server.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import importlib
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from cuda_agent.workspace import confine, landlock, seccomp  # noqa: F401 - `confine` loads these after the fork

_USER = 0x10000000
#: the other kinds of namespaces, by their names in /proc, with the flags of setns(2).
_KINDS = {"mnt": 0x00020000, "uts": 0x04000000, "ipc": 0x08000000, "pid": 0x20000000, "net": 0x40000000}
_KINDS["cgroup"] = 0x02000000
_NS_GET_USERNS = 0xB701
_MOST_BYTES, _MOST_DESCRIPTORS, _MOST_OPEN = 1 << 20, 16, 65536


def main() -> None:
    """Answers until the judge has ended. Arguments: the socket, the judge's process number, the module of programs."""
    descriptor, judge, name = sys.argv[1:]
    confine.prctl(confine.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(judge):
        return
    confine.drop_capabilities()
    confine.prctl(confine.PR_SET_NO_NEW_PRIVS, 1)
    # Processes of the same user must not read this one's memory.
    confine.prctl(confine.PR_SET_DUMPABLE, 0)
    # The kernel reaps the forks.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    server = socket.socket(fileno=int(descriptor))
    while True:
        raw, descriptors, _, _ = socket.recv_fds(server, _MOST_BYTES, _MOST_DESCRIPTORS)
        if not raw:
            return
        request = json.loads(raw)
        if request["program"]:
            _prepare(name, request["program"], log=descriptors[0])
        parent = os.getpid()
        if os.fork() == 0:
            _enter(request, descriptors, parent, name)
        for each in descriptors:
            os.close(each)


def _prepare(name: str, program: list[str], log: int) -> None:
    """Imports what a program needs. Where that fails, the program's log says why, and its fork tries the import again:
    the other forks would end with this process."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        importlib.import_module(name).prepare(program)
    except Exception:  # noqa: BLE001 - the import of foreign packages
        os.write(log, traceback.format_exc().encode())
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def _enter(request: dict[str, Any], descriptors: Sequence[int], parent: int, name: str) -> NoReturn:
    """Runs the program of a request in its sandbox, and tells its exit code."""
    log, ready, code_out, told = descriptors[:4]
    passed = list(descriptors[4:])
    namespaced = request["init"] is not None
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.write(told, str(os.getpid()).encode())
        _close_all_but({ready, code_out, *passed})
        if os.read(ready, 1):
            if namespaced:
                _join(passed.pop(), request["init"])
            else:
                confine.prctl(confine.PR_SET_CHILD_SUBREAPER, 1)
            confine.prctl(confine.PR_SET_PDEATHSIG, signal.SIGKILL if namespaced else signal.SIGTERM)
            if os.getppid() == parent:
                outer = os.getpid()
                program = os.fork()
                if program == 0:
                    _become(request, passed, 0 if namespaced else outer, name)
                _close_all_but({code_out})
                confine.drop_capabilities()
                code = _waited(program) if namespaced else confine.supervise(program)
                with contextlib.suppress(BrokenPipeError):
                    os.write(code_out, f"{code}\n".encode())
    except BaseException:  # noqa: BLE001 - a fork must never return into the server's loop
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(confine.SETUP_FAILED)


def _waited(program: int) -> int:
    code = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
    return code if code >= 0 else 128 - code


def _join(init: int, pid: int) -> None:
    """Enters the namespaces of a sandbox's first process that differ from this process's. Raises OSError."""
    its = Path(f"/proc/{pid}/ns")
    # Without root, bubblewrap mounts in one user namespace and runs the program in another one inside that.
    owner = fcntl.ioctl(os.open(its / "mnt", os.O_RDONLY | os.O_CLOEXEC), _NS_GET_USERNS)
    nested = os.fstat(owner).st_ino != (its / "user").stat().st_ino
    kinds = sum(flag for name, flag in _KINDS.items() if not (its / name).samefile(f"/proc/self/ns/{name}"))
    _setns(owner, _USER)
    # This fails where the process has ended meanwhile and its number is another's.
    _setns(init, kinds)
    if nested:
        _setns(init, _USER)
    # Joining may have made it readable, and it has no number in the sandbox's PID namespace.
    confine.prctl(confine.PR_SET_DUMPABLE, 0)


def _setns(descriptor: int, kind: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, kind) != 0:
        raise OSError(ctypes.get_errno(), f"can't join the sandbox's namespace {kind:#x}")


def _become(request: dict[str, Any], passed: Sequence[int], parent: int, name: str) -> NoReturn:
    """Becomes the program, as if the sandbox had started it. `parent` is 0 in another PID namespace."""
    _close_all_but(passed)
    os.setsid()
    confine.prctl(confine.PR_SET_CHILD_SUBREAPER, 0)
    confine.prctl(confine.PR_SET_DUMPABLE, 1)
    confine.confine(request["restrictions"])
    confine.prctl(confine.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == parent:
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["cwd"])
        # What Python and its library read at their start.
        sys.path[:0] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        sys.path_importer_cache.clear()
        if request["program"]:
            importlib.import_module(name).run(request["program"], passed)
    os._exit(0)


def _close_all_but(kept: Iterable[int]) -> None:
    """Closes all descriptors beyond standard error but these."""
    for before, after in pairwise(sorted({2, _MOST_OPEN, *kept})):
        os.closerange(before + 1, after)
