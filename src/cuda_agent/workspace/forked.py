"""A fork server's own process: it forks for each request, and the fork becomes a program in bubblewrap's namespaces.

A process can enter a PID namespace only by a fork. So there are two: the first joins the other namespaces and stays as
the program's parent, which tells bubblewrap's command the exit code; the second is the program. Nothing that runs code
of a task ever returns to the server.
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

#: of setns(2).
_USER, _CGROUP = 0x10000000, 0x02000000
#: mount, UTS, IPC, PID and network.
_OTHERS = 0x00020000 | 0x04000000 | 0x08000000 | 0x20000000 | 0x40000000
_NS_GET_USERNS = 0xB701
_MOST_BYTES, _MOST_DESCRIPTORS = 1 << 20, 16
_MOST_OPEN = 65536


def main() -> None:
    """Answers until the judge has ended. Arguments: the socket, the judge's process number, the module of programs."""
    descriptor, judge, name = sys.argv[1:]
    confine.prctl(confine.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(judge):
        return
    confine.drop_capabilities()
    confine.prctl(confine.PR_SET_NO_NEW_PRIVS, 1)
    server = socket.socket(fileno=int(descriptor))
    module: Any = None
    while True:
        raw, descriptors, _, _ = socket.recv_fds(server, _MOST_BYTES, _MOST_DESCRIPTORS)
        if not raw:
            return
        request = json.loads(raw)
        if request["program"] and module is None:
            module = _prepared(name, log=descriptors[4])
        # The kernel then reaps the forks.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        parent = os.getpid()
        if os.fork() == 0:
            _enter(request, descriptors, parent, module)
        for each in descriptors:
            os.close(each)


def _prepared(name: str, log: int) -> Any:
    """Imports the module of the programs and what they need. Its last words are in the log of the program that waits
    for it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        module = importlib.import_module(name)
        module.prepare()
    except BaseException:
        os.write(log, traceback.format_exc().encode())
        raise
    return module


def _enter(request: dict[str, Any], descriptors: Sequence[int], parent: int, module: Any) -> NoReturn:
    """Runs the program of a request in its sandbox, and tells its exit code."""
    init, ready, code_out, told, log, *passed = descriptors
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.write(told, str(os.getpid()).encode())
        _close_all_but({init, ready, code_out, *passed})
        if os.read(ready, 1):
            _join(init, request["init"])
            confine.prctl(confine.PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() == parent:
                program = os.fork()
                if program == 0:
                    _become(request, passed, module)
                _close_all_but({code_out})
                confine.confine(request["restrictions"])
                code = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
                os.write(code_out, f"{code if code >= 0 else 128 - code}\n".encode())
    except BaseException:  # noqa: BLE001 - a fork must never return into the server's loop
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(confine.SETUP_FAILED)


def _join(init: int, pid: int) -> None:
    """Enters the namespaces of a sandbox's first process, all of which must differ from this process's. Its child is in
    the PID namespace. Raises OSError."""
    mounts = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    # Without root, bubblewrap mounts in one user namespace and runs the program in another one inside that.
    owner = fcntl.ioctl(mounts, _NS_GET_USERNS)
    nested = os.fstat(owner).st_ino != Path(f"/proc/{pid}/ns/user").stat().st_ino
    own_cgroups = not Path(f"/proc/{pid}/ns/cgroup").samefile("/proc/self/ns/cgroup")
    _setns(owner, _USER)
    _setns(init, _OTHERS | (_CGROUP if own_cgroups else 0))
    if nested:
        _setns(init, _USER)
    # Nothing may read this process, which has no number in the sandbox's PID namespace.
    confine.prctl(confine.PR_SET_DUMPABLE, 0)


def _setns(descriptor: int, kinds: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, kinds) != 0:
        raise OSError(ctypes.get_errno(), f"can't join the sandbox's namespaces {kinds:#x}")


def _become(request: dict[str, Any], passed: Sequence[int], module: Any) -> NoReturn:
    """Becomes the program, as if bubblewrap had started it."""
    _close_all_but(passed)
    os.setsid()
    confine.confine(request["restrictions"])
    confine.prctl(confine.PR_SET_DUMPABLE, 1)
    confine.prctl(confine.PR_SET_PDEATHSIG, signal.SIGKILL)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    # What Python and its library read at their start.
    sys.path[:0] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path_importer_cache.clear()
    if module is None:
        os._exit(0)
    module.run(request["program"], passed)
    os._exit(0)


def _close_all_but(kept: Iterable[int]) -> None:
    """Closes all descriptors beyond standard error but these."""
    for before, after in pairwise(sorted({2, _MOST_OPEN, *kept})):
        with contextlib.suppress(OSError):
            os.closerange(before + 1, after)
