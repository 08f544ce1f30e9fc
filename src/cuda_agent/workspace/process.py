"""A sandboxed process: it is watched, and it is always ended together with everything that it started."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from cuda_agent.workspace.descendants import descendants

_WATCH_INTERVAL_S = 0.25
_LOG_LIMIT_BYTES = 64 << 20
_END_TIMEOUT_S = 10.0
_MOST_ENTRIES = 20000
#: a count of threads stays valid for this time. The limit beyond it is a multiple of what one sandbox may start.
_COUNT_S = 1.0
_counted = (-_COUNT_S, 0)


def threads_of_user() -> int:
    """Returns the number of threads with this user id, at most a second old. RLIMIT_NPROC counts them all.

    A busy machine has thousands, and counting them delays every other thread of this process.
    """
    global _counted
    at, count = _counted
    if time.monotonic() - at > _COUNT_S:
        count = _count_threads(os.getuid())
        _counted = time.monotonic(), count
    return count


def _count_threads(user: int) -> int:
    count = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if entry.stat().st_uid == user:
                    count += sum(1 for _ in (entry / "task").iterdir())
    return count


def page_faults(pid: int) -> int:
    """Returns the number of minor page faults of a process and its descendants."""
    total = 0
    for each in (pid, *descendants(pid)):
        with contextlib.suppress(OSError, ValueError, IndexError):
            total += int(Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()[7])
    return total


def memory_mib(pid: int) -> float:
    """Returns the anonymous and shared resident memory of one process in MiB, without file pages, which can be
    dropped."""
    total_kib = 0
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(("RssAnon:", "RssShmem:")):
                total_kib += int(line.split()[1])
    return total_kib / 1024


def disk_mib(folder: Path, enough_mib: float) -> float:
    """Returns the disk space below a folder in MiB, counted up to `enough_mib`; infinite where it has too many
    entries."""
    total, entries, queue = 0, 0, [str(folder)]
    while queue and total <= enough_mib * 2**20:
        with contextlib.suppress(OSError), os.scandir(queue.pop()) as found:
            for entry in found:
                entries += 1
                if entries > _MOST_ENTRIES:
                    return float("inf")
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        queue.append(entry.path)
                    total += 512 * entry.stat(follow_symlinks=False).st_blocks
    return total / 2**20


@dataclass(frozen=True)
class Watched:
    """The limits that the watcher checks: memory and disk space below `folder` in MiB (None: unlimited), and the number
    of processes."""

    memory_mib: int | None
    processes: int
    disk_mib: int | None
    folder: Path


class SandboxedProcess:
    """A process that `sandbox.spawn` started. `limit_hit` is "memory", "processes", "disk" or "log" when the watcher
    ended it, else None."""

    def __init__(
        self,
        popen: subprocess.Popen[bytes],
        *,
        init_pid: int | None,
        log: Path,
        limits: Watched,
        told: int | None = None,
    ) -> None:
        """`told` is the end of a pipe with the number of the program's parent, where that isn't below `popen`."""
        self._popen = popen
        self._init_fd: int | None = None
        if init_pid is not None:
            with contextlib.suppress(OSError):
                self._init_fd = os.pidfd_open(init_pid)
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._forked, self._told = 0, told
        self._telling = threading.Lock()
        self.log = log
        self.limit_hit: str | None = None
        self.peak_memory_mib = 0.0
        watcher = threading.Thread(target=self._watch, args=(limits,), name="watch", daemon=True)
        watcher.start()

    def __enter__(self) -> SandboxedProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """The process number of the program's outermost process. It waits for a fork server that still imports."""
        with self._telling:
            if self._told is not None:
                with os.fdopen(self._told, "rb") as told:
                    self._forked = int(told.read() or 0)
                self._told = None
        return self._forked or self._popen.pid

    def poll(self) -> int | None:
        """Returns the exit code, or None while it runs. A signal that ended it gives minus the signal's number."""
        code = self._popen.poll()
        # A program may exit with a higher code itself: ptxas returns 255.
        return 128 - code if code is not None and 128 < code < 128 + signal.NSIG else code

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end and returns the exit code like `poll`. Raises subprocess.TimeoutExpired."""
        self._popen.wait(timeout)
        code = self.poll()
        assert code is not None
        return code

    def doom(self) -> None:
        """Begins to kill and returns at once. Does nothing where there is no PID namespace; `kill` does all of it
        there."""
        with self._lock:
            self._ended.set()
            if self._init_fd is not None:
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(self._init_fd, signal.SIGKILL)

    def kill(self) -> None:
        """Kills the process, its group and every process that left the group. Returns when all have ended. It may be
        called again."""
        self.doom()
        with self._lock:
            if self._init_fd is None and self._popen.poll() is None:
                self._end_tree()
            with contextlib.suppress(OSError):
                os.killpg(self._popen.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(_END_TIMEOUT_S)
            if self._init_fd is not None:
                # It is readable once the namespace's first process is reaped. The kernel ends all others before that.
                select.select([self._init_fd], [], [], _END_TIMEOUT_S)
                os.close(self._init_fd)
                self._init_fd = None

    def tail(self, limit: int = 4096) -> str:
        """Returns the last `limit` characters of the output."""
        try:
            with self.log.open("rb") as stream:
                stream.seek(0, os.SEEK_END)
                stream.seek(max(0, stream.tell() - 4 * limit))
                return stream.read().decode(errors="replace")[-limit:]
        except OSError:
            return ""

    def _end_tree(self) -> None:
        """Ends the tree where there is no PID namespace: by the supervisor, or here when the supervisor doesn't."""
        _signal(self.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(3.0)
            return
        stopped: set[int] = set()
        # A process that was about to start another is stopped; its child is found in the next round.
        while fresh := {self.pid, *descendants(self.pid)} - stopped:
            for pid in fresh:
                _signal(pid, signal.SIGSTOP)
            stopped |= fresh
        for pid in stopped:
            _signal(pid, signal.SIGKILL)

    def _watch(self, limits: Watched) -> None:
        roots = {self._popen.pid, self.pid}
        while not self._ended.wait(_WATCH_INTERVAL_S):
            if self._popen.poll() is not None:
                return
            hit = self._exceeded(limits, roots)
            if hit is not None:
                self.limit_hit = hit
                self.kill()
                return

    def _exceeded(self, limits: Watched, roots: set[int]) -> str | None:
        below = [pid for root in roots for pid in descendants(root)]
        used = sum(memory_mib(pid) for pid in below)
        self.peak_memory_mib = max(self.peak_memory_mib, used)
        if limits.memory_mib is not None and used > limits.memory_mib:
            return "memory"
        if len(below) > limits.processes:
            return "processes"
        if limits.disk_mib is not None and disk_mib(limits.folder, limits.disk_mib) > limits.disk_mib:
            return "disk"
        return "log" if _size(self.log) > _LOG_LIMIT_BYTES else None


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def wait_until(process: SandboxedProcess, deadline: float) -> int | None:
    """Returns the exit code, or None when `time.monotonic()` passed `deadline` first; the process is then killed."""
    try:
        return process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        return None
