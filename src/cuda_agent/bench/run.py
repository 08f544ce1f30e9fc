"""A policy over a suite of tasks: begun, gone on with, and brought to its end.

Several tasks are at work at once, each in a player's process. What they do on the device goes in phases (`lane.py`):
baselines and candidates of many tasks are compiled and verified side by side, untimed, into caches; then those that are
ready are timed, one after the other, alone. A result is on disk as soon as it is known.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from cuda_agent.agent.policies.registry import policy_name
from cuda_agent.agent.policy import PolicyMaker
from cuda_agent.bench.crew import Crew
from cuda_agent.bench.directory import BenchDirectory
from cuda_agent.bench.lane_server import LaneServer
from cuda_agent.bench.metrics import metrics_of
from cuda_agent.bench.options import BenchOptions, check, default_jobs, host_share, peak_bytes, timed_cores
from cuda_agent.bench.player import Job
from cuda_agent.bench.scarcity import is_spoilt, names_scarcity
from cuda_agent.bench.suite import Problem, mixed, select
from cuda_agent.bench.turns import How, Turns
from cuda_agent.core.bench import BenchManifest, BenchResult, Metrics
from cuda_agent.core.errors import UsageError

#: told(result, done, tasks): as soon as a task is done.
Told = Callable[[BenchResult, int, int], None]


@dataclass
class Bench:
    """A run in its directory. `policy`: a name, or the maker of one that has none, which must be picklable."""

    directory: BenchDirectory
    manifest: BenchManifest
    problems: list[Problem]
    options: BenchOptions
    policy: str | PolicyMaker
    key_file: Path | None = None
    #: how many tasks are at work at once; None: as many as this machine bears.
    jobs: int | None = None
    #: seconds after which it stops as an interrupt would; before that, tasks that are at work may end.
    stop_after_s: float | None = None
    told: Told = lambda result, done, tasks: None
    say: Callable[[str], None] = lambda text: None

    def play(self) -> Metrics:
        """To the end. Whatever happens, metrics of what is done are on disk.

        Raises KeyboardInterrupt when it was interrupted and all runs are whole; StoreError, SandboxError, UsageError,
        PolicyError for what no task would survive.
        """
        with self.directory.lock():
            try:
                self._play()
            finally:
                metrics = self.measure()
        return metrics

    def measure(self) -> Metrics:
        """Of what is done so far, also written. Raises StoreError."""
        metrics = metrics_of(self.directory.results(), tasks=len(self.problems))
        self.directory.write_metrics(metrics)
        return metrics

    def _play(self) -> None:
        known = {result.task.id: result for result in self.directory.results()}
        fresh = mixed([problem for problem in self.problems if problem.entry.id not in known])
        doubtful = [p for p in self.problems if (result := known.get(p.entry.id)) is not None and is_doubtful(result)]
        if not fresh and not doubtful:
            return
        device = self.options.run.judge.device
        jobs = min(self.jobs or default_jobs(device), max(1, len(fresh)))
        end = None if self.stop_after_s is None else time.monotonic() + self.stop_after_s
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cuda-agent-bench-")))
            kept = stack.enter_context(timed_cores(device))
            turns = Turns(host_share=host_share(kept))
            server = stack.enter_context(LaneServer(folder / "lane.sock", turns, log=self.directory.turns_log))
            crew = Crew(device, jobs, server.address, self._job, kept=kept, end=end, set_room=server.set_room)
            stack.callback(crew.close)
            if self.manifest.limits is None:
                self.manifest = self.directory.write_limits(self.manifest, crew.limits())
            self.say(f"{len(fresh) + len(doubtful)} tasks to do, {jobs} at work at once")
            done = len(known)
            stack.callback(self._say_use, turns)
            for result in crew.play(fresh, alone=jobs == 1):
                done += 1
                self.directory.append(result)
                self.told(result, done, len(self.problems))
                if is_doubtful(result):
                    doubtful += [problem for problem in self.problems if problem.entry.id == result.task.id]
            if doubtful:
                self.say(f"{len(doubtful)} tasks ran short of something beside others, or were disturbed: again, alone")
            for result in crew.play(doubtful, alone=True):
                self.directory.append(result)
                self.told(result, done, len(self.problems))

    def _say_use(self, turns: Turns) -> None:
        seconds = {name: f"for {seconds:.0f} s" for name, seconds in turns.seconds.items()}
        used = f"alone {seconds[How.ALONE]}, shared {seconds[How.SHARED]}, only by baselines' compilers"
        self.say(f"the device was used {used} {seconds[How.ASIDE]}, by nobody {seconds['idle']}")

    def _job(self, problem: Problem, alone: bool) -> Job:
        return Job(
            entry=problem.entry,
            task=problem.task,
            directory=self.directory.task_directory(problem),
            root=self.directory.path,
            options=self.options.run,
            policy=self.policy,
            command=self.manifest.command,
            key_file=self.key_file,
            limits=self.manifest.limits,
            peak_bytes=peak_bytes(problem, self.options.run.judge.device),
            alone=alone,
        )


def is_doubtful(result: BenchResult) -> bool:
    """Whether a task's neighbours may be to blame for how it ended, so that it is done again when nobody is beside
    it."""
    if result.alone:
        return False
    spoilt = result.evaluation is not None and is_spoilt(result.evaluation)
    scarce = result.outcome == "error" and names_scarcity(result.message)
    return spoilt or scarce or result.outcome == "policy_error"


def begin(
    suite: Sequence[str],
    problems: Sequence[Problem],
    options: BenchOptions,
    out: Path,
    *,
    policy: str | PolicyMaker = "playbook",
    command: tuple[str, ...] = (),
) -> Bench:
    """A new run on those of the problems that the options choose. Raises UsageError, StoreError."""
    check(options)
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
    """A run that was begun, as it was begun. `suite` and `options`, where they are given, must be the same. `policy`:
    the maker of one that has no name.

    Raises UsageError where there is no such run or something differs, StoreError.
    """
    directory = BenchDirectory(out)
    manifest, problems, known = directory.read_start()
    if suite and " ".join(suite) != manifest.suite:
        raise UsageError(f"{out} was begun with the suite {manifest.suite}", "Leave SUITE out, or choose another --out")
    differences = [] if options is None else known.differences(options)
    if differences:
        raise UsageError(f"{out} was begun otherwise: {'; '.join(differences)}", "Give the same, or another --out")
    with directory.lock():
        results = directory.results()
        if len(results) < len(problems) or any(map(is_doubtful, results)):
            manifest, changes = directory.write_resumption(manifest, len(results))
            for change in changes:
                say(f"since the run was begun: {change}")
    return Bench(directory, manifest, problems, known, policy or manifest.policy)
