"""Tries seeds in sandboxed processes. A seed that crashes or hangs is reported, and the others continue in a new
process."""

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
#: The time for the first seed of a process, which includes the imports.
_START_LIMIT_S = 240.0
_POLL_S = 0.1
_SAY_EVERY = 100

Say = Callable[[str], None]
Jobs = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class TrialOptions:
    """How seeds are tried: the sandbox and the number of processes. `say` gets the progress, and `limit_s` is the time
    for one seed."""

    level: SandboxLevel
    workers: int
    say: Say
    limit_s: float = 60.0


class _Progress:
    """The output of a sandboxed process so far: outcomes by number, and the running job."""

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


def _until_end(
    process: SandboxedProcess, progress: _Progress, total: int, options: TrialOptions, ended: threading.Event
) -> str:
    """Waits until the process ends. Returns its ending, which is the outcome of the running job."""
    told, before = 0, progress.begun
    progress.changed = time.monotonic()
    while process.poll() is None:
        progress.look()
        if len(progress.outcomes) >= told + _SAY_EVERY:
            told = len(progress.outcomes)
            options.say(f"{told} of {total} tried")
        limit = _START_LIMIT_S if progress.begun == before else options.limit_s
        if ended.is_set() or time.monotonic() - progress.changed > limit:
            process.kill()
            return f"ran for more than {limit:.0f} s"
        time.sleep(_POLL_S)
    progress.look()
    if process.limit_hit is not None:
        return f"exceeded the limit of {process.limit_hit}"
    return f"ended its process with code {process.poll()}"


def _run_part(
    jobs: Sequence[dict[str, Any]], module: str, options: TrialOptions, ended: threading.Event
) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="cuda-agent-crawl-") as name:
        folder = Path(name)
        (folder / "scratch").mkdir()
        (folder / "jobs.jsonl").write_text("".join(json.dumps(job) + "\n" for job in jobs))
        progress = _Progress(folder / "scratch" / "results.jsonl")
        first = 0
        while first < len(jobs) and not ended.is_set():
            with _start(folder, module, first, options.level) as process:
                ending = _until_end(process, progress, len(jobs), options, ended)
                tail = process.tail(300)
            if progress.begun < first:
                ending = f"{ending} before it began: {tail.strip()[-200:]}"
            while first in progress.outcomes:
                first += 1
            if first < len(jobs):
                progress.outcomes[first] = {"reason": ending}
                first += 1
            options.say(f"{first} of {len(jobs)} tried")
        return [progress.outcomes.get(number, {"reason": "interrupted"}) for number in range(len(jobs))]


def default_workers() -> int:
    """Returns the number of parallel processes; each uses a core."""
    return max(1, min(16, len(os.sched_getaffinity(0)) // 2))


def run_jobs(jobs: Jobs, module: str, options: TrialOptions) -> list[dict[str, Any]]:
    """Returns what `module` answers to each job, or {"reason": …} where a job ended its process. Raises
    SandboxError."""
    size = max(1, math.ceil(len(jobs) / options.workers))
    parts = [jobs[start : start + size] for start in range(0, len(jobs), size)]
    ended = threading.Event()
    with ThreadPoolExecutor(max(1, len(parts))) as pool:
        try:
            found = list(pool.map(lambda part: _run_part(part, module, options, ended), parts))
        except BaseException:
            # Otherwise the interrupt would wait until the threads end.
            ended.set()
            raise
    return [outcome for part in found for outcome in part]


def try_entries(entries: Sequence[Entry], options: TrialOptions) -> list[dict[str, Any]]:
    """Returns the outcome of each entry: {"graph": …} or {"reason": …}."""
    jobs = [
        {"seed": entry.seed.model_dump(mode="json"), "small": entry.small, "leading": SMALL_LEADING}
        for entry in entries
    ]
    return run_jobs(jobs, "cuda_agent.tasks.crawl.trial", options)
