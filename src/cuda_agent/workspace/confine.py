"""Confines the own process and starts the sandboxed program: addresses, limits, `no_new_privs`, Landlock, system-call
filter, `exec`.

This file is run as `python -I -S confine.py JSON COMMAND…`, so it has nothing of the judge's memory. A fork server
(`forked.py`) imports it. It uses the standard library only, and little of that, because imports are most of the cost of
a short command. With the option `"supervise"` (level `reduced`, which has no PID namespace) the process stays as the
program's parent. It adopts orphaned descendants and kills all of them when the program ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
_PR_CAPBSET_DROP, _PR_SET_SECUREBITS, _PR_SET_THP_DISABLE = 24, 28, 41
_NO_ROOT_LOCKED = 0b1111
_CAPABILITY_VERSION_3 = 0x20080522
SETUP_FAILED = 125
_MIB = 1 << 20
_ADDR_NO_RANDOMIZE, _PERSONALITY_NOW = 0x0040000, 0xFFFFFFFF
_PAGE = 4096


def _load(name: str) -> Any:
    """Imports a file of this folder as a module. With `-I -S` no package can be imported."""
    if __package__:
        return getattr(__import__(__package__, fromlist=[name]), name)
    folder = __file__.rpartition("/")[0]
    if folder not in sys.path:
        # The last place, so that no file of this folder hides a module of the standard library.
        sys.path.append(folder)
    return __import__(name)


def prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _limit(kind: int, value: int | None) -> None:
    if value is None:
        return
    _, hard = resource.getrlimit(kind)
    bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (bound, bound))


def _apply_limits(limits: dict[str, int | None]) -> None:
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_NPROC, limits.get("threads"))
    _limit(resource.RLIMIT_CPU, limits.get("cpu_s"))
    file_mib, data_mib = limits.get("file_mib"), limits.get("data_mib")
    _limit(resource.RLIMIT_FSIZE, None if file_mib is None else file_mib * _MIB)
    _limit(resource.RLIMIT_DATA, None if data_mib is None else data_mib * _MIB)


def _end_all() -> None:
    """Kills every descendant until none is left. Each is stopped first, so that a fork bomb can't outrun the loop."""
    descendants = _load("descendants").descendants
    while True:
        for how in (signal.SIGSTOP, signal.SIGKILL):
            for pid in descendants(os.getpid()):
                with contextlib.suppress(OSError):
                    os.kill(pid, how)
        try:
            while os.waitpid(-1, 0)[0]:
                pass
        except ChildProcessError:
            return


def supervise(program: int) -> int:
    """Waits for the program, kills the processes that it left behind, and returns the program's exit code."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        _end_all()
        os._exit(128 + signal.SIGKILL)

    signal.signal(signal.SIGTERM, stop)
    status = 0
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == program:
            break
    _end_all()
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def drop_capabilities() -> None:
    """Drops the capabilities of root for good: they would give access to other processes in spite of Landlock."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in range(64):
        libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    libc.prctl(_PR_SET_SECUREBITS, _NO_ROOT_LOCKED, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    if libc.capset(ctypes.byref(header), ctypes.byref(nothing)) != 0:
        raise OSError(ctypes.get_errno(), "can't drop capabilities")


def _fix_addresses(command: list[str]) -> None:
    """Gives every such process the same memory addresses, where the system allows that.

    The relative position of an interpreter's memory changes its speed by some per cent for its whole life. The stack
    begins below the arguments and the environment, so these are padded to whole pages.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.personality.argtypes = [ctypes.c_ulong]
    now = libc.personality(_PERSONALITY_NOW)
    if now != -1:
        libc.personality(now | _ADDR_NO_RANDOMIZE)
    os.environ["FILL"] = ""
    words = [*command, *(f"{name}={value}" for name, value in os.environ.items())]
    used = sum(len(os.fsencode(word)) + 1 for word in words)
    os.environ["FILL"] = "-" * (-used % _PAGE)


def confine(options: dict[str, Any]) -> None:
    """Limits this process for good, as `main` does before it runs a command."""
    _apply_limits(options["limits"])
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as stream:
        stream.write("500")
    drop_capabilities()
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    rules = options.get("landlock")
    if rules is not None:
        _load("landlock").restrict(**rules)
    if options.get("seccomp", True):
        _load("seccomp").restrict(network=bool(options.get("network")))


def main(arguments: list[str]) -> None:
    """Runs the command by `exec` and never returns. Exits with 125 when the sandbox can't be set up, and with 127 when
    the command doesn't exist."""
    options, command = json.loads(arguments[0]), arguments[1:]
    if options.get("supervise"):
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        parent = os.getpid()
        program = os.fork()
        if program:
            # The program's channel to the judge must close when the program dies, so this process keeps no copy of it.
            os.closerange(3, 65536)
            os._exit(supervise(program))
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(SETUP_FAILED)
    try:
        if options.get("fixed_addresses"):
            _fix_addresses(command)
        if options.get("small_pages"):
            prctl(_PR_SET_THP_DISABLE, 1)
        if "limits" in options:
            confine(options)
        # The interpreter ignores these two signals, and an ignored signal stays ignored after exec.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        os.execvp(command[0], command)
    except FileNotFoundError:
        sys.stderr.write(f"{command[0]}: not found\n")
        os._exit(127)
    except OSError as error:
        sys.stderr.write(f"sandbox: {error}\n")
        os._exit(SETUP_FAILED)


if __name__ == "__main__":
    main(sys.argv[1:])
