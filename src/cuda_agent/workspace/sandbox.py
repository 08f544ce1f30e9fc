"""Runs untrusted commands in bubblewrap where it works (`full`), else under Landlock and limits (`reduced`).

Both levels also filter system calls (`seccomp.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from cuda_agent.core.enums import SandboxLevel
from cuda_agent.core.errors import SandboxError
from cuda_agent.workspace import bwrap, landlock
from cuda_agent.workspace.forkserver import ForkServer, confined, popen
from cuda_agent.workspace.process import SandboxedProcess, Watched, threads_of_user
from cuda_agent.workspace.seccomp import build_filter

_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
#: folders inside the hidden /run where some systems keep the GPU driver's libraries.
_DRIVER_FOLDERS = (Path("/run/opengl-driver"), Path("/run/nvidia"))
_PASSED_ON = (
    "PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ", "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",
    "OMP_NUM_THREADS", "MKL_NUM_THREADS",
)  # fmt: skip

#: what runs beside a fork, in the same sandbox: it says that the sandbox stands, then waits for the fork's exit code.
#: Without one the server has ended.
_REPEATS = 'echo; read -r code; exit "${code:-125}"'
_PROBE_TIMEOUT_S = 20.0


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


def _restrictions(spec: SandboxSpec) -> dict[str, object]:
    """Returns the options of `confine.py`."""
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
    return options


def _bubblewrapped(
    binary: str, spec: SandboxSpec, command: Sequence[str], cwd: Path, environment: Mapping[str, str], info_fd: int,
    filter_fd: int | None,
) -> list[str]:  # fmt: skip
    """Returns the argv of bubblewrap that runs `command`. The user id outside stays the same, which CUDA IPC needs."""
    size = str(spec.limits.scratch_mib * bwrap.MIB)
    arguments = [binary, *(name for name in bwrap.NAMESPACES if not (spec.network and name == "--unshare-net"))]
    arguments += ["--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv", "--info-fd", str(info_fd)]
    arguments += [] if filter_fd is None else ["--seccomp", str(filter_fd)]
    arguments += ["--ro-bind", "/", "/", *(bwrap.probe(binary)[0] or ()), "--dev", "/dev"]
    for node in bwrap.gpu_nodes() if spec.gpu else ():
        arguments += ["--dev-bind-try", node, node]
    arguments += ["--size", size, "--tmpfs", "/dev/shm", "--size", size, "--tmpfs", "/tmp"]
    arguments += bwrap.mounts(*_paths(spec))
    for name, value in environment.items():
        arguments += ["--setenv", name, value]
    return [*arguments, "--chdir", str(cwd.resolve()), "--", *command]


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
    environment = closed_environment(spec.scratch, spec.environment)
    popen, init_pid = _start(command, spec, cwd, log, environment, pass_fds=spec.pass_fds)
    return SandboxedProcess(popen, init_pid=init_pid, log=log, limits=_watched(spec))


def fork(server: ForkServer, program: Sequence[str], spec: SandboxSpec, *, cwd: Path, log: Path) -> SandboxedProcess:
    """Starts a sandbox like `spawn`, with a fork of the server in it instead of a command. An empty program ends at
    once. It returns before the server has imported.

    A shell waits for the fork's exit code and repeats it. Raises SandboxError.
    """
    with contextlib.ExitStack() as held:
        (code_in, code_out), (ready_in, ready_out), (told, told_out) = (os.pipe() for _ in range(3))
        for end in (code_in, code_out, ready_in, ready_out, told_out):
            held.callback(os.close, end)
        popen, init_pid = _start(("/bin/sh", "-c", _REPEATS), spec, cwd, log, {}, stdin=code_in, stdout=ready_out)
        started = SandboxedProcess(popen, init_pid=init_pid, log=log, limits=_watched(spec), told=told)
        try:
            joined, environment = [], closed_environment(spec.scratch, spec.environment)
            if spec.level is SandboxLevel.FULL:
                # Bubblewrap sets it.
                environment["PWD"] = str(cwd.resolve())
                if init_pid is None:
                    # Bubblewrap's last words are in the log.
                    return started
                joined.append(os.pidfd_open(init_pid))
                held.callback(os.close, joined[0])
            request = {
                "program": program,
                "init": init_pid,
                "cwd": str(cwd.resolve()),
                "environment": environment,
                "restrictions": _restrictions(spec),
            }
            stream = held.enter_context(log.open("ab"))
            server.ask(request, (stream.fileno(), ready_in, code_out, told_out, *spec.pass_fds, *joined))
        except BaseException:
            started.kill()
            raise
    return started


@lru_cache(maxsize=16)
def can_fork(server: ForkServer, level: SandboxLevel) -> bool:
    """Whether this machine lets a process of the server join a sandbox. It is tried once."""
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(SandboxError, OSError, subprocess.TimeoutExpired):
        spec = SandboxSpec(scratch=Path(folder), level=level)
        with fork(server, (), spec, cwd=spec.scratch, log=Path(folder) / "log") as process:
            return process.wait(_PROBE_TIMEOUT_S) == 0
    return False


def _watched(spec: SandboxSpec) -> Watched:
    return Watched(spec.limits.memory_mib, spec.limits.processes, spec.limits.disk_mib, spec.scratch)


def _start(
    command: Sequence[str],
    spec: SandboxSpec,
    cwd: Path,
    log: Path,
    environment: dict[str, str],
    *,
    stdin: int = subprocess.DEVNULL,
    stdout: int | None = None,
    pass_fds: Sequence[int] = (),
) -> tuple[subprocess.Popen[bytes], int | None]:
    """Starts a confined command; what has no other place goes to the log. Returns the process, and the number of the
    first process in its PID namespace, if it has one."""
    spec.scratch.mkdir(parents=True, exist_ok=True)
    restrictions = _restrictions(spec)
    if spec.level is SandboxLevel.REDUCED:
        return _popen(confined(restrictions, command), cwd, log, environment, stdin, stdout, pass_fds), None
    facts = sandbox_facts()
    if facts.bwrap is None or facts.level is not SandboxLevel.FULL:
        raise SandboxError(f"The full sandbox doesn't work here: {facts.reason}", "Use --sandbox auto")
    with contextlib.ExitStack() as held:
        filter_fd = held.enter_context(_filter(spec))
        # Bubblewrap's own first process has the filter too, since the command may write into its memory.
        restrictions["seccomp"] = spec.filter_syscalls and filter_fd is None
        read_end, write_end = os.pipe()
        argv = _bubblewrapped(
            facts.bwrap, spec, confined(restrictions, command), cwd, environment, write_end, filter_fd
        )
        fds = [*pass_fds, write_end, *([] if filter_fd is None else [filter_fd])]
        try:
            process = _popen(argv, cwd, log, environment, stdin, stdout, fds)
        except SandboxError:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
    return process, _read_init_pid(read_end)


@contextlib.contextmanager
def _filter(spec: SandboxSpec) -> Iterator[int | None]:
    """Yields a descriptor of the system-call filter's code for bubblewrap, None without a filter."""
    code = build_filter(os.uname().machine, network=spec.network) if spec.filter_syscalls else None
    if code is None:
        yield None
        return
    handle = os.memfd_create("filter")
    try:
        os.write(handle, code)
        os.lseek(handle, 0, os.SEEK_SET)
        yield handle
    finally:
        os.close(handle)


def _popen(
    argv: list[str], cwd: Path, log: Path, environment: dict[str, str], stdin: int, stdout: int | None,
    pass_fds: Sequence[int],
) -> subprocess.Popen[bytes]:  # fmt: skip
    try:
        with log.open("ab") as stream:
            return popen(
                argv, stdin=stdin, stdout=stream if stdout is None else stdout, stderr=stream, env=environment,
                cwd=str(cwd), pass_fds=tuple(pass_fds), start_new_session=True,
            )  # fmt: skip
    except OSError as error:
        raise SandboxError(
            f"Can't start a sandboxed process: {error.strerror}", "Check memory and process limits"
        ) from None
