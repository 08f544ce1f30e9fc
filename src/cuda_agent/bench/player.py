"""Plays one task of a benchmark like `optimize`, in its run directory."""

import time
from dataclasses import dataclass, field
from pathlib import Path

from cuda_agent.agent.policies.registry import policy_name
from cuda_agent.agent.policy import PolicyMaker
from cuda_agent.agent.run import AgentRun, Unsaved
from cuda_agent.agent.storage.rundir import RunDirectory
from cuda_agent.agent.taskfile import check_source
from cuda_agent.bench.directory import BenchDirectory
from cuda_agent.bench.suite import Problem
from cuda_agent.core.bench import BenchManifest, BenchResult, RooflineClass, SuiteTask
from cuda_agent.core.config import OptimizeOptions
from cuda_agent.core.enums import Precision
from cuda_agent.core.errors import StoreError, TaskError
from cuda_agent.core.inspection import LeastWork, Roofline
from cuda_agent.core.records import Trajectory
from cuda_agent.llm.client import prepare
from cuda_agent.pool.pool import Pool
from cuda_agent.pool.session import StayingJudge

#: The time in which a process of a killed benchmark ends its run.
_LOCK_PATIENCE_S = 30.0
#: The outcomes of a run that can't be continued.
_OVER = ("finished", "not_covered", "gave_up", "budget", "stalled", "policy_error")


#: The time in µs that any call takes for its launches. Less work than that doesn't determine the time.
LATENCY_US = 10.0


@dataclass
class Player:
    """One task to be played in a benchmark, whose folder no candidate may read. With `again`, a run that ended because
    its policy failed is continued."""

    problem: Problem
    bench: BenchDirectory
    manifest: BenchManifest
    options: OptimizeOptions
    policy: str | PolicyMaker
    pool: Pool
    key_file: Path | None = None
    again: bool = False
    _run: AgentRun | None = field(default=None, init=False)
    _stopped: bool = field(default=False, init=False)
    _work: list[LeastWork] = field(default_factory=list, init=False)

    @property
    def directory(self) -> Path:
        return self.bench.task_directory(self.problem)

    def stop(self) -> None:
        """Ends the run from another thread, like an interrupt. The pool must then be closed."""
        self._stopped = True
        run = self._run
        if run is not None:
            run.stop()

    def play(self) -> BenchResult | None:
        """Returns the task's result, or None where it was stopped and can be continued. A task that can't be judged has
        a result too. Raises DeviceError, WorkerError, and errors that end the benchmark: StoreError, SandboxError,
        UsageError."""
        begin = time.monotonic()
        try:
            trajectory = self._played()
        except TaskError as error:
            return self.failed(error, time.monotonic() - begin)
        except Unsaved as error:
            raise StoreError(error.cause, error.remedy, detail=error.detail) from None
        if trajectory.outcome == "interrupted":
            return None
        return self._with_facts(result_of(self.problem.entry, trajectory))

    def _played(self) -> Trajectory:
        task = self.problem.task
        check_source(task.source, task.name)
        directory = RunDirectory(self.directory)
        if not directory.was_begun:
            # A run that was killed before its start has nothing of value.
            directory.discard()
            directory = RunDirectory.create(self.directory, task.name)
        with directory.lock(patience_s=_LOCK_PATIENCE_S):
            left = Trajectory.find(directory.path)
            again = ("policy_error",) if self.again else ()
            if left is not None and left.outcome in _OVER and left.outcome not in again:
                return left
            if directory.was_begun:
                manifest, _ = directory.write_resumption(directory.read_start()[2], self.options)
            else:
                manifest = directory.write_start(task, self.options, self.manifest.command)
            judge = StayingJudge(self.pool, rank=time.time(), told=self._work.append)
            key = prepare(self.options.llm, self.key_file) if policy_name(self.policy) == "llm" else None
            run = AgentRun(
                task, self.options, self.policy, directory, manifest,
                judge=judge, key=key, hidden=(self.bench.path,),
            )  # fmt: skip
            self._run = run
            if self._stopped:
                run.stop()
            return run.play()

    def _with_facts(self, result: BenchResult) -> BenchResult:
        directory = str(self.directory.relative_to(self.bench.path)) if self.directory.exists() else None
        entry = result.task
        if self._work:
            roofline = bound(self._work[0], self.manifest.limits, self.options.judge.precision)
            entry = entry.model_copy(update={"work": self._work[0], "roofline": roofline or entry.roofline})
        return result.model_copy(update={"task": entry, "directory": directory})

    def failed(self, error: Exception, wall_s: float) -> BenchResult:
        """Returns the result of a task that can't be judged, or whose judge or device failed."""
        entry = self.problem.entry
        return self._with_facts(BenchResult(task=entry, outcome="error", message=str(error), wall_s=wall_s))


def bound(work: LeastWork, limits: Roofline | None, precision: Precision) -> RooflineClass | None:
    """Returns `latency` where memory and arithmetic at their limits both take less than LATENCY_US, else the slower of
    both. Returns None where the device's limits are unknown."""
    if limits is None:
        return None
    memory_us, compute_us = work.least_us(limits, precision)
    if max(memory_us, compute_us) < LATENCY_US:
        return "latency"
    return "memory" if memory_us >= compute_us else "compute"


def result_of(entry: SuiteTask, trajectory: Trajectory) -> BenchResult:
    """Returns the result of a finished run."""
    answers = [result.data for turn in trajectory.turns for result in turn.results]
    broken = [data for data in answers if data.get("succeeded") is False or data.get("verdict") == "build_failed"]
    return BenchResult.of(entry, trajectory, turns=trajectory.budget.turns_spent, failed_builds=len(broken))
