"""Runs a policy on a suite of tasks: begins, resumes and completes the run.

Several tasks run at once, each in a thread; the pool decides which of them has the device. A result is written as soon
as it is known.
"""

import functools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from cuda_agent.agent.policies.registry import policy_name
from cuda_agent.agent.policy import PolicyMaker
from cuda_agent.bench.directory import BenchDirectory
from cuda_agent.bench.metrics import metrics_of
from cuda_agent.bench.options import BenchOptions, default_jobs
from cuda_agent.bench.player import Player
from cuda_agent.bench.suite import Problem, mixed, select
from cuda_agent.core.bench import BenchManifest, BenchResult, Metrics
from cuda_agent.core.errors import CudaAgentError, DeviceError, PolicyError, UsageError, WorkerError
from cuda_agent.pool.pool import Pool

#: So many policies that fail in a row mean that the endpoint is gone or the key is wrong.
_MOST_POLICY_ERRORS = 3
_LOOK_S = 0.2
#: A run that waits for a language model is abandoned after this time; it can be resumed.
_END_TIMEOUT_S = 15.0

#: told(result, done, tasks) is called when a task is done.
Told = Callable[[BenchResult, int, int], None]


@dataclass
class Bench:
    """A run in its directory. `policy` is a name, or the maker of a policy without a name, which must be picklable."""

    directory: BenchDirectory
    manifest: BenchManifest
    problems: list[Problem]
    options: BenchOptions
    policy: str | PolicyMaker
    key_file: Path | None = None
    #: The number of tasks at once; None is the most that this machine supports.
    jobs: int | None = None
    #: The seconds after which it stops like an interrupt; until then, running tasks may end.
    stop_after_s: float | None = None
    told: Told = lambda result, done, tasks: None
    say: Callable[[str], None] = lambda text: None

    def play(self) -> Metrics:
        """Plays all tasks. The metrics of finished tasks are written in any case. Raises KeyboardInterrupt when it was
        interrupted and all runs are complete on disk, and StoreError, SandboxError, UsageError, PolicyError for errors
        that every task would have."""
        with self.directory.lock():
            try:
                self._play()
            finally:
                metrics = self.measure()
        return metrics

    def measure(self) -> Metrics:
        """Writes and returns the metrics of the finished tasks. Raises StoreError."""
        metrics = metrics_of(self.directory.results(), tasks=len(self.problems))
        metrics.write(self.directory.path)
        return metrics

    def _play(self) -> None:
        known = {result.task.id: result for result in self.directory.results()}
        fresh = mixed([problem for problem in self.problems if problem.entry.id not in known])
        again = [p for p in self.problems if (result := known.get(p.entry.id)) is not None and is_unfinished(result)]
        if not fresh and not again:
            return
        judge = self.options.run.judge
        jobs = min(self.jobs or default_jobs(judge.device), len(fresh) + len(again))
        hidden = (self.directory.path, *((self.key_file,) if self.key_file is not None else ()))
        with Pool(judge, sessions=jobs, hidden=hidden, log=self.directory.turns_log) as pool:
            if self.manifest.limits is None:
                self.manifest = self.manifest.model_copy(update={"limits": pool.limits()})
                self.manifest.write(self.directory.path)
            self.say(f"{len(fresh) + len(again)} tasks to do, {jobs} at a time")
            player = functools.partial(
                Player, bench=self.directory, manifest=self.manifest, options=self.options.run, policy=self.policy,
                pool=pool, key_file=self.key_file,
            )  # fmt: skip
            players = [*map(player, fresh), *(player(problem, again=True) for problem in again)]
            done = len(known)
            with Players(players, jobs, pool, self.stop_after_s) as running:
                for result in running.results():
                    done += result.task.id not in known
                    self.directory.append(result)
                    self.told(result, done, len(self.problems))


class Players:
    """A context manager that plays tasks in threads, `jobs` at a time. Running tasks are stopped when the block ends;
    their runs are then complete on disk."""

    def __init__(self, players: Sequence[Player], jobs: int, pool: Pool, stop_after_s: float | None = None) -> None:
        """`stop_after_s` is the number of seconds after which it stops like an interrupt. No task begins that would end
        later, if it takes as long as the others did."""
        self._waiting, self._jobs, self._pool = deque(players), jobs, pool
        self._end = None if stop_after_s is None else time.monotonic() + stop_after_s
        self._found: queue.SimpleQueue[BenchResult | BaseException | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._at_work: list[Player] = []
        self._threads: list[threading.Thread] = []
        self._walls: list[float] = []
        self._stopping = False
        self._policy_errors = 0

    def __enter__(self) -> Self:
        for number in range(self._jobs):
            thread = threading.Thread(target=self._drive, name=f"task-{number + 1}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        with self._lock:
            self._stopping = True
            self._waiting.clear()
            at_work = list(self._at_work)
        for player in at_work:
            player.stop()
        if at_work:
            self._pool.close()
        end = time.monotonic() + _END_TIMEOUT_S
        for thread in self._threads:
            thread.join(max(0.1, end - time.monotonic()))

    def results(self) -> Iterator[BenchResult]:
        """Yields results as they come. Raises KeyboardInterrupt where the time ends before all are done, and errors
        that every task would have: StoreError, SandboxError, UsageError, PolicyError."""
        left = self._jobs
        while left:
            try:
                found = self._found.get(timeout=_LOOK_S)
            except queue.Empty:
                if self._end is not None and time.monotonic() > self._end:
                    raise KeyboardInterrupt from None
                continue
            if found is None:
                left -= 1
            elif isinstance(found, BaseException):
                raise found
            else:
                yield found
        if self._waiting:
            raise KeyboardInterrupt

    def _drive(self) -> None:
        try:
            while (player := self._take()) is not None:
                try:
                    found = self._play(player)
                finally:
                    with self._lock:
                        self._at_work.remove(player)
                if found is not None:
                    self._found.put(found)
        except BaseException as error:  # noqa: BLE001 - the boundary of a thread: the main thread raises it
            self._found.put(error)
        finally:
            self._found.put(None)

    def _take(self) -> Player | None:
        with self._lock:
            if self._stopping or not self._waiting or not has_time(self._walls, self._end, time.monotonic()):
                return None
            player = self._waiting.popleft()
            self._at_work.append(player)
            return player

    def _play(self, player: Player) -> BenchResult | None:
        """Returns a task's result, also where a process of its judge died, or None where it was stopped."""
        begin = time.monotonic()
        try:
            result = player.play()
        except (DeviceError, WorkerError) as error:
            return None if self._stopping else player.failed(error, time.monotonic() - begin)
        except CudaAgentError:
            if self._stopping:
                return None
            raise
        if result is not None:
            with self._lock:
                self._walls.append(time.monotonic() - begin)
                self._look_at_policy(result)
        return result

    def _look_at_policy(self, result: BenchResult) -> None:
        self._policy_errors = self._policy_errors + 1 if result.outcome == "policy_error" else 0
        if self._policy_errors >= _MOST_POLICY_ERRORS:
            cause = f"The policy failed on {self._policy_errors} tasks in a row: {result.message}"
            raise PolicyError(cause, "Remove the cause, then continue with --resume")


def has_time(walls: Sequence[float], end: float | None, now: float) -> bool:
    """Returns whether a task that begins now ends in time, if it takes as long as three of four others did."""
    usual = sorted(walls)[3 * (len(walls) - 1) // 4] if walls else 0.0
    return end is None or now + usual < end


def is_unfinished(result: BenchResult) -> bool:
    """Returns whether a resumed benchmark continues a task with a result, because its policy failed."""
    return result.outcome == "policy_error"


def begin(
    suite: Sequence[str],
    problems: Sequence[Problem],
    options: BenchOptions,
    out: Path,
    *,
    policy: str | PolicyMaker = "playbook",
    command: tuple[str, ...] = (),
) -> Bench:
    """Begins a run on those of the problems that the options choose. Raises UsageError, StoreError."""
    if options.run.parallel > 1:
        raise UsageError("A benchmark plays one agent on each task", "Omit --parallel")
    chosen = select(problems, levels=options.levels, ids=options.ids, limit=options.limit)
    directory = BenchDirectory(out)
    directory.prepare()
    with directory.lock():
        directory.prepare()
        manifest = directory.write_start(" ".join(suite), chosen, options, policy_name(policy), command)
    return Bench(directory, manifest, chosen, options, policy)


def go_on(
    out: Path,
    *,
    suite: Sequence[str] = (),
    options: BenchOptions | None = None,
    policy: PolicyMaker | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Bench:
    """Resumes a run with its own options. `suite` and `options`, if given, must be the same. `policy` is the maker of a
    policy without a name. Raises UsageError where there is no such run or something differs, StoreError."""
    directory = BenchDirectory(out)
    manifest, problems, known = directory.read_start()
    if suite and " ".join(suite) != manifest.suite:
        raise UsageError(f"{out} has the suite {manifest.suite}", "Omit SUITE, or choose another --out")
    differences = [] if options is None else known.differences(options)
    if differences:
        raise UsageError(
            f"{out} has other options: {'; '.join(differences)}", "Give the same options, or another --out"
        )
    with directory.lock():
        results = directory.results()
        if len(results) < len(problems) or any(map(is_unfinished, results)):
            manifest, changes = directory.write_resumption(manifest, len(results))
            for change in changes:
                say(f"since the start of the run: {change}")
    return Bench(directory, manifest, problems, known, policy or manifest.policy)
