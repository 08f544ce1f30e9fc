"""Tries seeds in sandboxed processes. A seed that crashes or hangs is reported, and the others continue in a new
process."""

import json
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from cuda_agent.core.enums import Device, SandboxLevel
from cuda_agent.tasks.captured import task_workers
from cuda_agent.tasks.crawl.catalogue import SMALL_LEADING, Entry
from cuda_agent.workers.process import Worker, WorkerFault
from cuda_agent.workers.requests import FaultKind, WorkerAnswer, WorkerRequest
from cuda_agent.workers.roles import Role

_MEMORY_MIB = 8192
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


class CrawlOutcome(WorkerAnswer):
    """The outcome of a job, as JSON."""

    outcome: str


class CrawlJob(WorkerRequest[CrawlOutcome]):
    """A job, as JSON."""

    job: str


def _run_part(jobs: Jobs, options: TrialOptions, start: Callable[[], Worker]) -> list[dict[str, Any]]:
    """Returns the outcomes of jobs that follow each other in one process, or in a new one where a job ended it."""
    outcomes: list[dict[str, Any]] = []
    worker = start()
    for number, job in enumerate(jobs, 1):
        try:
            answer = worker.request(CrawlJob(job=json.dumps(job)), timeout_s=options.limit_s)
            outcomes.append(json.loads(answer.outcome))
        except WorkerFault as error:
            late = error.fault.kind is FaultKind.DEADLINE
            limit = f"ran for more than {options.limit_s:.0f} s"
            outcomes.append({"reason": limit if late else f"ended its process ({error.fault.reason})"})
            worker.kill()
            worker = start()
        if number % _SAY_EVERY == 0 or number == len(jobs):
            options.say(f"{number} of {len(jobs)} tried")
    return outcomes


def default_workers() -> int:
    """Returns the number of parallel processes; each uses a core."""
    return max(1, min(16, len(os.sched_getaffinity(0)) // 2))


def run_jobs(jobs: Jobs, module: str, options: TrialOptions) -> list[dict[str, Any]]:
    """Returns what `module` answers to each job, or {"reason": …} where a job ended its process. Raises SandboxError,
    WorkerError."""
    size = max(1, math.ceil(len(jobs) / options.workers))
    parts = [jobs[start : start + size] for start in range(0, len(jobs), size)]
    with ThreadPoolExecutor(max(1, len(parts))) as pool, ExitStack() as stack:
        # The processes end before the pool waits for its threads, so that an interrupt needn't wait for the jobs.
        start = stack.enter_context(task_workers(Device.CPU, options.level, _MEMORY_MIB, Role("crawler", module)))
        found = list(pool.map(_run_part, parts, [options] * len(parts), [start] * len(parts)))
    return [outcome for part in found for outcome in part]


def try_entries(entries: Sequence[Entry], options: TrialOptions) -> list[dict[str, Any]]:
    """Returns the outcome of each entry: {"graph": …} or {"reason": …}."""
    jobs = [
        {"seed": entry.seed.model_dump(mode="json"), "small": entry.small, "leading": SMALL_LEADING}
        for entry in entries
    ]
    return run_jobs(jobs, "cuda_agent.tasks.crawl.trial", options)
