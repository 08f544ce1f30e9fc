"""Runs untrusted commands in bubblewrap where it works (`full`), else under Landlock and limits (`reduced`).

Both levels also filter system calls (`seccomp.py`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from cuda_agent.core.enums import SandboxLevel
from cuda_agent.core.errors import SandboxError
from cuda_agent.workspace import bwrap, landlock
from cuda_agent.workspace.process import SandboxedProcess, Watched, threads_of_user

_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
#: folders inside the hidden /run where some systems keep the GPU driver's libraries.
_DRIVER_FOLDERS = (Path("/run/opengl-driver"), Path("/run/nvidia"))
_PASSED_ON = (
    "PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ", "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",
    "OMP_NUM_THREADS", "MKL_NUM_THREADS",
)  # fmt: skip


@dataclass(frozen=True)
class SandboxLimits:
    """What a sandboxed command may use. `memory_mib` is the anonymous and shared memory of all its processes
    together."""

    memory_mib: int | None = None
    processes: int = 512
    file_mib: int = 4096
    cpu_s: int | None = None
    #: size of the private /tmp and /dev/shm, which are memory.
    scratch_mib: int = 1024
    #: disk space of the scratch folder, checked four times a second.
    disk_mib: int | None = None


@dataclass(frozen=True)
class SandboxSpec:
    """One sandbox. The command can read all but the user's home, /tmp, /run and `hidden`, and can write only in
    `scratch` and `writable`.

    A deeper path wins: a `readable` folder inside a `hidden` one is readable. `scratch` is HOME and TMPDIR inside.
    """

    scratch: Path
    level: SandboxLevel
    writable: tuple[Path, ...] = ()
    readable: tuple[Path, ...] = ()
    hidden: tuple[Path, ...] = ()
    #: added to `closed_environment`.
    environment: Mapping[str, str] = field(default_factory=dict)
    gpu: bool = False
    network: bool = False
    pass_fds: tuple[int, ...] = ()
    limits: SandboxLimits = SandboxLimits()
    #: False only for tools that trace the program that they run (compute-sanitizer).
    filter_syscalls: bool = True
    #: turns address-space randomisation off where the system allows that, for a process that is timed.
    fixed_addresses: bool = False
    #: turns huge pages off where the system allows that. The system makes huge pages only for a process that has run
    #: for minutes, which would give it an advantage over a younger process that is timed beside it.
    small_pages: bool = False


@dataclass(frozen=True)
class SandboxFacts:
    """The sandbox that this machine allows; `reason` says why it isn't `full`."""

    level: SandboxLevel
    bwrap: str | None
    landlock_abi: int
    reason: str = ""


@lru_cache(maxsize=1)
def sandbox_facts() -> SandboxFacts:
    """Starts bubblewrap once to see whether it works; the result is kept for this process."""
    binary, version = bwrap.find_bwrap(), landlock.abi()
    if binary is None:
        named = os.environ.get("CUDA_AGENT_BWRAP")
        reason = f"CUDA_AGENT_BWRAP={named} can't be run" if named else "bubblewrap is not installed"
        return SandboxFacts(SandboxLevel.REDUCED, None, version, reason)
    form, reason = bwrap.probe(binary)
    if form is None:
        return SandboxFacts(SandboxLevel.REDUCED, binary, version, f"bubblewrap does not run here: {reason}")
    return SandboxFacts(SandboxLevel.FULL, binary, version)


def resolve_level(wanted: str) -> SandboxLevel:
    """Returns the level for `auto`, `full` or `reduced`. Raises SandboxError when `full` is wanted and doesn't work."""
    if wanted == "reduced":
        return SandboxLevel.REDUCED
    facts = sandbox_facts()
    if wanted == "full" and facts.level is not SandboxLevel.FULL:
        raise SandboxError(
            f"The full sandbox doesn't work here: {facts.reason}",
            "Install it with `apt install bubblewrap` and allow user namespaces, or use --sandbox auto",
        )
    return facts.level


def closed_environment(scratch: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns the environment of a sandboxed command: a fixed list of our variables, HOME and TMPDIR in the scratch
    folder, and `extra`."""
    kept = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    kept.setdefault("PATH", os.defpath)
    kept.setdefault("LANG", "C.UTF-8")
    own = {"HOME": str(scratch), "TMPDIR": str(scratch), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONNOUSERSITE": "1"}
    return kept | own | dict(extra or {})


@lru_cache(maxsize=1)
def _interpreter_paths() -> tuple[Path, ...]:
    """Returns the folders that this Python needs to start and to import this package."""
    package = Path(__file__).resolve().parents[1]
    found = {Path(sys.prefix), Path(sys.base_prefix), Path(sys.exec_prefix), package}
    found |= {Path(sys.executable).parent, Path(sys.executable).resolve().parent}
    found |= {
        Path(entry)
        for entry in sys.path
        if "site-packages" in entry or "dist-packages" in entry or "lib/python" in entry
    }
    paths = {path for item in found for path in (item.absolute(), item.resolve()) if path.exists()}
    home = Path.home().resolve()
    return tuple(sorted(path for path in paths if path not in (home, *home.parents)))


def _all_but(hidden: Iterable[Path]) -> list[str]:
    """Returns folders and files that cover the whole tree but the hidden paths. Landlock can only allow, not deny."""
    hidden_set = set(hidden)
    split = {parent for path in hidden_set for parent in path.parents}
    allowed: list[str] = []
    queue = [Path("/")]
    while queue:
        folder = queue.pop()
        try:
            children = list(folder.iterdir())
        except OSError:
            continue
        for child in children:
            if child in hidden_set or child.is_symlink():
                continue
            if child in split:
                queue.append(child)
            else:
                allowed.append(str(child))
    return allowed


def _paths(spec: SandboxSpec) -> tuple[set[Path], set[Path], set[Path]]:
    """Returns the resolved paths (hidden, readable, writable)."""
    # The home folders, and the folders where services of the machine have their sockets.
    private = {Path.home().resolve(), Path("/root"), Path("/home"), Path("/run"), Path("/var/run").resolve()}
    hidden = {path.resolve() for path in spec.hidden}
    hidden |= {path for path in private if len(path.parts) > 1 and path.is_dir()}
    readable = {path.resolve() for path in spec.readable} | set(_interpreter_paths()) | set(_DRIVER_FOLDERS)
    writable = {path.resolve() for path in (spec.scratch, *spec.writable)}
    return hidden, readable, writable


def _confine(spec: SandboxSpec, command: Sequence[str]) -> list[str]:
    limits = spec.limits
    options: dict[str, object] = {
        "limits": {
            "threads": threads_of_user() + 8 * limits.processes,
            "file_mib": limits.file_mib,
            "cpu_s": limits.cpu_s,
            # RLIMIT_AS would count CUDA's and torch's huge reservations; the driver's mappings make RLIMIT_DATA
            # unusable on a GPU too, where only the watcher of SandboxedProcess bounds memory.
            "data_mib": None if spec.gpu else limits.memory_mib,
        },
        "network": spec.network,
        "seccomp": spec.filter_syscalls,
        "fixed_addresses": spec.fixed_addresses,
        "small_pages": spec.small_pages,
    }
    if spec.level is SandboxLevel.REDUCED:
        hidden, readable, writable = _paths(spec)
        devices = [*_DEVICES, *(bwrap.gpu_nodes() if spec.gpu else ())]
        if spec.gpu:
            # The driver needs shared memory between processes, and fails with error 304 where it can't name its
            # threads. `self` is the sandboxed process alone. Landlock has no rule for its children, and all of /proc
            # would be too much.
            writable |= {Path("/dev/shm"), Path("/proc/self/task")}
        readable_names = _all_but(hidden | {Path("/dev"), Path("/tmp"), Path("/var/tmp")})
        options |= {
            "supervise": True,
            "landlock": {
                "readable": readable_names + sorted(map(str, readable)),
                "writable": sorted(map(str, writable)),
                "devices": devices,
                "network": spec.network,
            },
        }
    script = Path(__file__).with_name("confine.py")
    return [sys.executable, "-I", "-S", str(script), json.dumps(options), *command]


def _bubblewrapped(
    binary: str, spec: SandboxSpec, command: Sequence[str], cwd: Path, environment: Mapping[str, str], info_fd: int
) -> list[str]:
    """Returns the argv of bubblewrap that runs `command`. The user id outside stays the same, which CUDA IPC needs."""
    size = str(spec.limits.scratch_mib * bwrap.MIB)
    arguments = [binary, *(name for name in bwrap.NAMESPACES if not (spec.network and name == "--unshare-net"))]
    arguments += ["--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv", "--info-fd", str(info_fd)]
    arguments += ["--ro-bind", "/", "/", *(bwrap.probe(binary)[0] or ()), "--dev", "/dev"]
    for node in bwrap.gpu_nodes() if spec.gpu else ():
        arguments += ["--dev-bind-try", node, node]
    arguments += ["--size", size, "--tmpfs", "/dev/shm", "--size", size, "--tmpfs", "/tmp"]
    arguments += bwrap.mounts(*_paths(spec))
    for name, value in environment.items():
        arguments += ["--setenv", name, value]
    return [*arguments, "--chdir", str(cwd.resolve()), "--", *command]


_spawners: dict[int, ThreadPoolExecutor] = {}


def _popen(argv: list[str], **options: Any) -> subprocess.Popen[bytes]:
    """Starts a process from a thread that lives as long as this process. With "die with parent" the kernel means the
    parent's *thread*."""
    spawner = _spawners.get(os.getpid())
    if spawner is None:
        spawner = _spawners.setdefault(os.getpid(), ThreadPoolExecutor(1, thread_name_prefix="spawn"))
    return spawner.submit(lambda: subprocess.Popen(argv, **options)).result()


def _read_init_pid(handle: int) -> int | None:
    """Returns the PID, as seen here, of the sandbox's first process; None when bubblewrap failed before it began."""
    with os.fdopen(handle, "rb") as stream:
        text = stream.read()
    try:
        return int(json.loads(text)["child-pid"])
    except (ValueError, KeyError):
        return None


def spawn(command: Sequence[str], spec: SandboxSpec, *, cwd: Path, log: Path) -> SandboxedProcess:
    """Starts `command` in a sandbox and appends its output to `log`. The caller ends it with `kill()` or a `with`
    block.

    Raises SandboxError when the sandbox can't be started.
    """
    spec.scratch.mkdir(parents=True, exist_ok=True)
    environment = closed_environment(spec.scratch, spec.environment)
    argv = _confine(spec, command)
    read_end = write_end = -1
    fds = list(spec.pass_fds)
    if spec.level is SandboxLevel.FULL:
        facts = sandbox_facts()
        if facts.bwrap is None or facts.level is not SandboxLevel.FULL:
            raise SandboxError(f"The full sandbox doesn't work here: {facts.reason}", "Use --sandbox auto")
        read_end, write_end = os.pipe()
        argv = _bubblewrapped(facts.bwrap, spec, argv, cwd, environment, write_end)
        fds.append(write_end)
    try:
        with log.open("ab") as stream:
            popen = _popen(
                argv, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT, env=environment, cwd=str(cwd),
                pass_fds=tuple(fds), start_new_session=True,
            )  # fmt: skip
    except OSError as error:
        if read_end >= 0:
            os.close(read_end)
        raise SandboxError(
            f"Can't start a sandboxed process: {error.strerror}", "Check memory and process limits"
        ) from None
    finally:
        if write_end >= 0:
            os.close(write_end)
    init_pid = _read_init_pid(read_end) if read_end >= 0 else None
    limits = Watched(spec.limits.memory_mib, spec.limits.processes, spec.limits.disk_mib, spec.scratch)
    return SandboxedProcess(popen, init_pid=init_pid, log=log, limits=limits)
