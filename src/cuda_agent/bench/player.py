"""Plays the tasks of a benchmark, one after the other, in a process of its own: each as `optimize` would, in its run
directory, with the device in turns."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

from cuda_agent.agent.policies.registry import policy_name
from cuda_agent.agent.policy import PolicyMaker
from cuda_agent.agent.run import Run, Unsaved
from cuda_agent.agent.storage.rundir import RunDirectory
from cuda_agent.agent.taskfile import check_source
from cuda_agent.bench.judges import LaneJudges
from cuda_agent.bench.lane import Address, Lane, Size, Step
from cuda_agent.bench.roofline import bound
from cuda_agent.bench.scarcity import is_spoilt
from cuda_agent.core.bench import BenchResult, SuiteTask
from cuda_agent.core.config import OptimizeOptions
from cuda_agent.core.enums import Device
from cuda_agent.core.errors import StoreError, TaskError
from cuda_agent.core.inspection import Roofline, Work
from cuda_agent.core.records import RunManifest, Task, Trajectory
from cuda_agent.core.stack import read_stack
from cuda_agent.judge import MAX_COMPILE_THREADS, device_roofline
from cuda_agent.llm.client import prepare
from cuda_agent.llm.keys import Key
from cuda_agent.pool.holder import Builder
from cuda_agent.reward import reward
from cuda_agent.workers.affinity import keep_off
from cuda_agent.workers.buffers import SMALL_CONTEXT
from cuda_agent.workers.helper import HelperProcess, tell

#: a player that was left behind by a killed benchmark needs so long to end its run.
_LOCK_PATIENCE_S = 30.0
#: how a run ended that has nothing more to say.
_OVER = ("finished", "not_covered", "gave_up", "budget", "stalled", "policy_error")


@dataclass(frozen=True)
class Job:
    """One task to be played. `root`: the benchmark's folder, which no candidate may see. `alone`: nothing else is at
    work, and what neighbours may have spoilt is done again."""

    entry: SuiteTask
    task: Task
    directory: Path
    root: Path
    options: OptimizeOptions
    policy: str | PolicyMaker
    command: tuple[str, ...] = ()
    key_file: Path | None = None
    limits: Roofline | None = None
    peak_bytes: int = 0
    alone: bool = False


class Player:
    """What runs in the process (see `judge.helper`). `cores`: its share of the machine's. `kept`: those that it keeps
    off but for what it times."""

    def __init__(self, lane: Address, device: Device, cores: int, kept: frozenset[int] = frozenset()) -> None:
        self._lane, self._device, self._cores, self._kept = Lane(lane), device, cores, kept
        cuda = device is Device.CUDA
        # Which cores there are, before it has fewer.
        read_stack()
        keep_off(kept)
        self._builder = HelperProcess(partial(Builder, None), name="builder") if cuda else None
        self._woken = False

    def limits(self) -> Roofline | None:
        """What the device reaches. Raises WorkerError where the benchmark has ended."""
        self._wake()
        with self._lane.alone(Step("limits")) as hush, hush():
            return device_roofline(self._device)

    def play(self, job: Job) -> BenchResult | None:
        """The task's result; None where it was interrupted, and can be gone on with. Tells its `Memory`. A task that
        can't be judged is a result.

        Raises DeviceError, WorkerError, and for what no task can survive StoreError, SandboxError, UsageError."""
        self._wake()
        work: list[Work] = []
        self._lane.task, self._lane.begun_s, self._lane.size = job.entry.id, time.time(), Size.of(job.peak_bytes)
        # A compiler's pool of processes costs seconds of a core before it compiles anything.
        threads = max(1, min(MAX_COMPILE_THREADS, self._cores))
        waits = not job.alone
        judges = LaneJudges(self._lane, self._builder, work.append, tell, threads, self._kept, waits=waits)
        begin = time.monotonic()
        try:
            with _interruptible():
                trajectory = self._played(job, judges)
        except TaskError as error:
            return self._result(job, work, BenchResult(
                task=job.entry, outcome="error", message=str(error), wall_s=time.monotonic() - begin
            ))  # fmt: skip
        except Unsaved as error:
            raise StoreError(error.cause, error.remedy, detail=error.detail) from None
        except KeyboardInterrupt:
            return None
        return (
            None if trajectory.outcome == "interrupted" else self._result(job, work, result_of(job.entry, trajectory))
        )

    def close(self) -> None:
        if self._builder is not None:
            self._builder.close()

    def _wake(self) -> None:
        """This process's own context, which the judge's buffers need; a small one, since each that there is makes it
        longer to make another."""
        if self._woken or self._device is not Device.CUDA:
            return
        os.environ.update(SMALL_CONTEXT)
        import torch

        with self._lane.shared(Step("start")):
            torch.cuda.init()
            torch.zeros(1, device="cuda")
            torch.cuda.synchronize()
        self._woken = True

    def _result(self, job: Job, work: list[Work], result: BenchResult) -> BenchResult:
        """With what is known of the task besides."""
        directory = str(job.directory.relative_to(job.root)) if job.directory.exists() else None
        entry = result.task
        if work:
            roofline = bound(work[0], job.limits, job.options.judge.precision)
            entry = entry.model_copy(update={"work": work[0], "roofline": roofline or entry.roofline})
        return result.model_copy(update={"task": entry, "directory": directory, "alone": job.alone})

    def _played(self, job: Job, judges: LaneJudges) -> Trajectory:
        check_source(job.task.source, job.task.name)
        directory = RunDirectory(job.directory)
        if not directory.was_begun:
            # What a kill left before the run had begun is nothing that anybody misses.
            directory.discard()
            directory = RunDirectory.create(job.directory, job.task.name)
        with _patient_lock(directory):
            over = _over(directory)
            if over is not None and not (job.alone and over.outcome == "policy_error"):
                return self._again(job, judges, directory, over) if job.alone else over
            if directory.was_begun:
                manifest, _ = directory.write_resumption(directory.read_start()[2], job.options)
            else:
                manifest = directory.write_start(job.task, job.options, job.command)
            return self._run(job, judges, directory, manifest).play()

    def _run(self, job: Job, judges: LaneJudges, directory: RunDirectory, manifest: RunManifest) -> Run:
        hidden, key = (job.root,), _key(job)
        return Run(job.task, job.options, job.policy, directory, manifest, judge=judges, key=key, hidden=hidden)

    def _again(self, job: Job, judges: LaneJudges, directory: RunDirectory, over: Trajectory) -> Trajectory:
        """The candidate is judged once more, with the device and the machine for itself."""
        if over.best is None or over.evaluation is None or not is_spoilt(over.evaluation):
            return over
        manifest = directory.read_start()[2]
        run = self._run(job, judges, directory, manifest)
        evaluation = run.judge_again(over.best)
        paid = reward(evaluation, job.options.judge.reward_baseline)
        trajectory = over.model_copy(update={"evaluation": evaluation, "reward": paid})
        directory.write_end(manifest, trajectory)
        return trajectory


def result_of(entry: SuiteTask, trajectory: Trajectory) -> BenchResult:
    """What a run that is over says about its task."""
    budget = trajectory.budget
    said = [result.data for turn in trajectory.turns for result in turn.results]
    broken = [data for data in said if data.get("succeeded") is False or data.get("verdict") == "build_failed"]
    return BenchResult(
        task=entry,
        outcome=trajectory.outcome,
        message=trajectory.message,
        evaluation=trajectory.evaluation,
        reward=trajectory.reward,
        turns=budget.turns_spent,
        tokens=budget.tokens,
        cost=budget.cost,
        wall_s=budget.wall_s,
        judge_s=budget.judge_s,
        failed_builds=len(broken),
    )


def _key(job: Job) -> Key | None:
    """Raises UsageError where the policy is a language model that can't be asked."""
    return prepare(job.options.llm, job.key_file) if policy_name(job.policy) == "llm" else None


def _over(directory: RunDirectory) -> Trajectory | None:
    """The run, where there is nothing to go on with."""
    if not (directory.path / Trajectory.file_name).is_file():
        return None
    left = Trajectory.read(directory.path)
    return left if left.outcome in _OVER else None


@contextmanager
def _patient_lock(directory: RunDirectory) -> Iterator[None]:
    """Raises StoreError where another process holds the run for long."""
    end = time.monotonic() + _LOCK_PATIENCE_S
    while True:
        lock = directory.lock()
        try:
            lock.__enter__()
            break
        except StoreError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)
    try:
        yield
    finally:
        lock.__exit__(None, None, None)


@contextmanager
def _interruptible() -> Iterator[None]:
    """A signal to terminate ends a run as an interrupt does, once, so that its directory is whole."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
