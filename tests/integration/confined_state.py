"""A program for both ways to start a sandboxed process: it tells everything that confines it, or tries to escape.

A module of its own, as the sandboxed process must be able to import it.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import stat
import sys
from pathlib import Path
from typing import Any

#: lines of /proc/self/status..
_STATUS = (
    "Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp",
    "Seccomp_filters", "SigBlk", "SigIgn", "Umask", "TracerPid", "Cpus_allowed", "Mems_allowed", "THP_enabled",
)  # fmt: skip
_GETTERS = {"parent death": 2, "dumpable": 3, "subreaper": 37, "no huge pages": 42}
_KINDS = ("user", "mnt", "uts", "ipc", "pid", "net", "cgroup")
_RANDOMIZE = 0x0040000


def state() -> dict[str, Any]:
    """Everything that the two ways must have in common. Reads only."""
    libc = ctypes.CDLL(None)
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    number = ctypes.c_int()
    getters: dict[str, int] = {}
    for name, option in _GETTERS.items():
        value = libc.prctl(option, ctypes.byref(number), 0, 0, 0)
        getters[name] = number.value if name in ("parent death", "subreaper") else value
    return {
        "status": {name: lines.get(name, "").split() for name in _STATUS},
        "getters": getters,
        "namespaces": {kind: str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in _KINDS},
        "mounts": _mounts(),
        "files": {
            place: _listed(place) for place in ("/", "/tmp", "/dev", "/dev/shm", "/run", "/root", str(Path.cwd()))
        },
        "environment": {name: value for name, value in os.environ.items() if name != "FILL"},
        "descriptors": _descriptors(),
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if "RLIMIT" in name},
        "folder": str(Path.cwd()),
        "search": sys.path,
        "cgroup": _read("/proc/self/cgroup"),
        "oom": _read("/proc/self/oom_score_adj"),
        "nice": os.nice(0),
        "hash": hash("torch"),
        "handlers": {each.name: str(signal.getsignal(each)).split(" at ")[0] for each in signal.Signals},
        "leads its session": os.getsid(0) == os.getpgrp(),
        "fixed addresses": bool(libc.personality(0xFFFFFFFF) & _RANDOMIZE),
        "terminal": _opens("/dev/tty"),
        "writes": {place: _opens(place, os.O_RDWR) for place in ("/proc/sys/kernel/core_pattern", "/etc/passwd")},
        "processes": len([name for name in _listed("/proc") or () if name.isdigit()]),
    }


def _mounts() -> list[list[str]]:
    """Root, place, options, type, source and the file system's options, without numbers of mounts and devices."""
    found = []
    for line in _read("/proc/self/mountinfo").splitlines():
        own, _, shared = line.partition(" - ")
        found.append([*own.split()[3:6], *shared.split()])
    return found


def _descriptors() -> list[str]:
    """What each descriptor is, in order; the numbers of pipes and sockets differ."""
    numbers = sorted(int(path.name) for path in Path("/proc/self/fd").iterdir())
    found = []
    for number in numbers:
        try:
            mode, place = os.fstat(number).st_mode, Path(f"/proc/self/fd/{number}").readlink()
        except OSError:
            continue  # the listing's own
        kind = stat.filemode(mode)[0]
        found.append(f"{number if number < 3 else 'passed'} {kind} {place if kind in '-cd' else ''}")
    return found


def _listed(place: str) -> list[str] | None:
    try:
        return sorted(path.name for path in Path(place).iterdir())
    except OSError:
        return None


def _read(place: str) -> str:
    try:
        return Path(place).read_text()
    except OSError as error:
        return str(error.errno)


def _opens(place: str, how: int = os.O_RDONLY) -> str:
    try:
        os.close(os.open(place, how))
    except OSError as error:
        return str(error.errno)
    return "opened"


def attack(numbers: list[int], front: str, back: str) -> dict[str, Any]:
    """Tries to reach the processes `numbers` outside, and looks for a secret in its own memory."""
    libc = ctypes.CDLL(None, use_errno=True)
    reached = []
    for number in numbers:
        for what, did in (
            ("signal", lambda pid: os.kill(pid, 0)),
            ("memory", lambda pid: os.open(f"/proc/{pid}/mem", os.O_RDWR)),
            ("environment", lambda pid: os.open(f"/proc/{pid}/environ", os.O_RDONLY)),
            ("descriptors", lambda pid: Path(f"/proc/{pid}/fd/0").readlink()),
            ("pidfd", lambda pid: signal.pidfd_send_signal(os.pidfd_open(pid), 0)),
        ):
            try:
                did(number)
            except OSError:
                continue
            reached.append(f"{what} of {number}")
        if libc.ptrace(16, number, 0, 0) == 0:
            reached.append(f"trace of {number}")
    return {
        "reached": reached,
        "sockets": [line.split()[-1] for line in _read("/proc/net/unix").splitlines()[1:] if "@" in line],
        "secret": _secret_in_memory(front, back),
        "poisoned": hasattr(os, "poisoned"),
        "own": os.getpid(),
        "drawn": __import__("random").random(),
    }


def _secret_in_memory(front: str, back: str) -> int:
    """How often the two halves, which this process never joins, follow each other in its memory."""
    first, second, count = front.encode(), back.encode(), 0
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
        for line in maps:
            span, rights = line.split()[:2]
            start, end = (int(word, 16) for word in span.split("-"))
            if not rights.startswith("rw") or end - start > 1 << 30:
                continue
            try:
                memory.seek(start)
                content = memory.read(end - start)
            except (OSError, OverflowError):
                continue
            at = content.find(first)
            while at >= 0:
                count += content[at + len(first) : at + len(first) + len(second)] == second
                at = content.find(first, at + 1)
            del content
    return count


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def act(words: list[str]) -> None:
    """The last word goes to the log."""
    what, *rest = words
    if what == "state":
        _say(json.dumps(state()))
    elif what == "attack":
        _say(json.dumps(attack(json.loads(rest[0]), *rest[1:3])))
    elif what == "poison":
        os.poisoned = True  # type: ignore[attr-defined]
        json.dumps = None  # type: ignore[assignment]
        Path("poison").write_text("me")
        os.kill(-1, signal.SIGKILL)
    elif what == "exit":
        os._exit(int(rest[0]))
    elif what == "die":
        os.kill(os.getpid(), int(rest[0]))
    elif what == "sleep":
        if os.fork() == 0:
            os.setsid()
        _say("up")
        signal.pause()


def prepare(program: list[str]) -> None:
    """A fork server needs nothing more."""
    if program[-1] == "unprepared":
        raise OSError("this import failed once")


def run(program: list[str], _descriptors: list[int]) -> None:
    act(program)


if __name__ == "__main__":
    act(sys.argv[1:])
