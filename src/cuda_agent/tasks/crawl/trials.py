"""Seeds tried in one sandboxed process; one that crashes or hangs is named, and the rest goes on in a new process."""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuda_agent.core import bytecode
from cuda_agent.core.enums import SandboxLevel
from cuda_agent.tasks.crawl.catalogue import SMALL_LEADING, Entry
from cuda_agent.workers.process import memory_limit_mib
from cuda_agent.workspace.process import SandboxedProcess
from cuda_agent.workspace.sandbox import SandboxLimits, SandboxSpec, spawn

_PACKAGES = Path(__file__).resolve().parents[3]
_MEMORY_MIB = 8192
#: for the first seed of a process, which also waits for the imports.
_START_LIMIT_S = 240.0
_POLL_S = 0.1
_SAY_EVERY = 100

Say = Callable[[str], None]


@dataclass(frozen=True)
class Way:
    """How seeds are tried: in which sandbox, in how many processes; `say` is told how far it has come. `limit_s`: for
    one seed."""

    level: SandboxLevel
    workers: int
    say: Say
    limit_s: float = 60.0


class _Progress:
    """What a sandboxed process has written so far: outcomes by number, and the job in flight."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.outcomes: dict[int, dict[str, Any]] = {}
        self.begun = -1
        self.changed = time.monotonic()
        self._size = 0

    def look(self) -> None:
        size = self._path.stat().st_size if self._path.exists() else 0
        if size == self._size:
            return
        self._size, self.changed = size, time.monotonic()
        for line in self._path.read_text().splitlines():
            try:
                told = json.loads(line)
            except ValueError:
                continue
            number = told.pop("number")
            self.begun = max(self.begun, number)
            if told:
                self.outcomes[number] = told


def _start(folder: Path, module: str, first: int, level: SandboxLevel) -> SandboxedProcess:
    scratch, compiled = folder / "scratch", bytecode.environment()
    spec = SandboxSpec(
        scratch=scratch,
        level=level,
        readable=(folder, _PACKAGES, *map(Path, compiled.values())),
        environment=compiled,
        limits=SandboxLimits(memory_mib=memory_limit_mib(_MEMORY_MIB), disk_mib=512),
    )
    arguments = [str(folder / "jobs.jsonl"), str(scratch / "results.jsonl"), str(first)]
    return spawn([sys.executable, "-P", "-m", module, *arguments], spec, cwd=scratch, log=folder / "log")


def _until_end(process: SandboxedProcess, progress: _Progress, total: int, way: Way, ended: threading.Event) -> str:
    """Waits; how it ended, for the job in flight."""
    told, before = 0, progress.begun
    progress.changed = time.monotonic()
    while process.poll() is None:
        progress.look()
        if len(progress.outcomes) >= told + _SAY_EVERY:
            told = len(progress.outcomes)
            way.say(f"{told} of {total} tried")
        limit = _START_LIMIT_S if progress.begun == before else way.limit_s
        if ended.is_set() or time.monotonic() - progress.changed > limit:
            process.kill()
            return f"ran for more than {limit:.0f} s"
        time.sleep(_POLL_S)
    progress.look()
    if process.limit_hit is not None:
        return f"exceeded the limit of {process.limit_hit}"
    return f"ended its process with code {process.poll()}"


def _run_part(jobs: Sequence[dict[str, Any]], module: str, way: Way, ended: threading.Event) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="cuda-agent-crawl-") as name:
        folder = Path(name)
        (folder / "scratch").mkdir()
        (folder / "jobs.jsonl").write_text("".join(json.dumps(job) + "\n" for job in jobs))
        progress = _Progress(folder / "scratch" / "results.jsonl")
        first = 0
        while first < len(jobs) and not ended.is_set():
            with _start(folder, module, first, way.level) as process:
                ending = _until_end(process, progress, len(jobs), way, ended)
                tail = process.tail(300)
            if progress.begun < first:
                ending = f"{ending} before it began: {tail.strip()[-200:]}"
            while first in progress.outcomes:
                first += 1
            if first < len(jobs):
                progress.outcomes[first] = {"reason": ending}
                first += 1
            way.say(f"{first} of {len(jobs)} tried")
        return [progress.outcomes.get(number, {"reason": "interrupted"}) for number in range(len(jobs))]


def default_workers() -> int:
    """Processes that try side by side: each holds a core."""
    return max(1, min(16, len(os.sched_getaffinity(0)) // 2))


def run_jobs(jobs: Sequence[dict[str, Any]], module: str, way: Way) -> list[dict[str, Any]]:
    """What `module` answers to each job, or {"reason": …} where a job ended its process. Raises SandboxError."""
    size = max(1, math.ceil(len(jobs) / way.workers))
    parts = [jobs[start : start + size] for start in range(0, len(jobs), size)]
    ended = threading.Event()
    with ThreadPoolExecutor(max(1, len(parts))) as pool:
        try:
            found = list(pool.map(lambda part: _run_part(part, module, way, ended), parts))
        except BaseException:
            # The threads would otherwise be waited for to their end, whoever interrupts.
            ended.set()
            raise
    return [outcome for part in found for outcome in part]


def try_entries(entries: Sequence[Entry], way: Way) -> list[dict[str, Any]]:
    """The outcome of each entry: {"graph": …} or {"reason": …}."""
    jobs = [
        {"seed": entry.seed.model_dump(mode="json"), "small": entry.small, "leading": SMALL_LEADING}
        for entry in entries
    ]
    return run_jobs(jobs, "cuda_agent.tasks.crawl.trial", way)
