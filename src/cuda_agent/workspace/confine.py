"""The last step before a sandboxed program: addresses, limits, `no_new_privs`, Landlock, system-call filter, `exec`.

Run as `python -I -S confine.py JSON COMMAND…`, not imported: standard library only, as little of it as can be (imports
are most of what a short command costs), and nothing of the judge's memory.
With `"supervise"` (level `reduced`, where no PID namespace ends what the program left behind) it stays as the parent
that adopts orphans and kills them all.
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

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 36, 38
_PR_CAPBSET_DROP, _PR_SET_SECUREBITS, _PR_SET_THP_DISABLE = 24, 28, 41
_NO_ROOT_LOCKED = 0b1111
_CAPABILITY_VERSION_3 = 0x20080522
_SETUP_FAILED = 125
_MIB = 1 << 20
_ADDR_NO_RANDOMIZE, _PERSONALITY_NOW = 0x0040000, 0xFFFFFFFF
_PAGE = 4096


def _load(name: str) -> Any:
    """A neighbour file as a module: with `-I -S` no package can be imported."""
    folder = __file__.rpartition("/")[0]
    if folder not in sys.path:
        # Last, so that nothing of ours takes the place of what the standard library imports.
        sys.path.append(folder)
    return __import__(name)


def _prctl(option: int, value: int) -> None:
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


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - pathlib is dear
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/children") as stream:
                found += [int(word) for word in stream.read().split()]
    return found


def _descendants(pid: int) -> list[int]:
    found, queue = [], _children(pid)
    while queue:
        child = queue.pop()
        found.append(child)
        queue += _children(child)
    return found


def _end_all() -> None:
    """Kill every descendant until none is left. Stopped first, so that a fork bomb doesn't outrun the sweep."""
    while True:
        for how in (signal.SIGSTOP, signal.SIGKILL):
            for pid in _descendants(os.getpid()):
                with contextlib.suppress(OSError):
                    os.kill(pid, how)
        try:
            while os.waitpid(-1, 0)[0]:
                pass
        except ChildProcessError:
            return


def _supervise(program: int) -> None:
    """Wait for the program, end what it left behind, and end the same way."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        _end_all()
        os._exit(128 + signal.SIGKILL)

    signal.signal(signal.SIGTERM, stop)
    # The judge's end of the program's channel must close when the program dies, so keep no copy here.
    os.closerange(3, 65536)
    status = 0
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == program:
            break
    _end_all()
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def _drop_capabilities() -> None:
    """A root user's powers, and the way back to them: they would see through Landlock into other processes."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in range(64):
        libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    libc.prctl(_PR_SET_SECUREBITS, _NO_ROOT_LOCKED, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    if libc.capset(ctypes.byref(header), ctypes.byref(nothing)) != 0:
        raise OSError(ctypes.get_errno(), "can't drop capabilities")


def _fix_addresses(command: list[str]) -> None:
    """Every such process gets its memory at the same places, where the system allows that: what lies how to each other
    decides by some per cent how fast an interpreter is, for as long as it lives. The stack begins below the arguments
    and the environment, so these are filled up to whole pages."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.personality.argtypes = [ctypes.c_ulong]
    now = libc.personality(_PERSONALITY_NOW)
    if now != -1:
        libc.personality(now | _ADDR_NO_RANDOMIZE)
    os.environ["FILL"] = ""
    words = [*command, *(f"{name}={value}" for name, value in os.environ.items())]
    used = sum(len(os.fsencode(word)) + 1 for word in words)
    os.environ["FILL"] = "-" * (-used % _PAGE)


def _confine(options: dict[str, Any]) -> None:
    _apply_limits(options["limits"])
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as stream:
        stream.write("500")
    _drop_capabilities()
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    rules = options.get("landlock")
    if rules is not None:
        _load("landlock").restrict(**rules)
    if options.get("seccomp", True):
        _load("seccomp").restrict(network=bool(options.get("network")))


def main(arguments: list[str]) -> None:
    """Never returns: `exec`s the command, or exits with 125 when it can't be set up, 127 when it isn't there."""
    options, command = json.loads(arguments[0]), arguments[1:]
    if options.get("supervise"):
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        parent = os.getpid()
        program = os.fork()
        if program:
            _supervise(program)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(_SETUP_FAILED)
    try:
        if options.get("fixed_addresses"):
            _fix_addresses(command)
        if options.get("small_pages"):
            _prctl(_PR_SET_THP_DISABLE, 1)
        _confine(options)
        # The interpreter ignores these two, and an ignored signal survives exec.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        os.execvp(command[0], command)
    except FileNotFoundError:
        sys.stderr.write(f"{command[0]}: not found\n")
        os._exit(127)
    except OSError as error:
        sys.stderr.write(f"sandbox: {error}\n")
        os._exit(_SETUP_FAILED)


if __name__ == "__main__":
    main(sys.argv[1:])
