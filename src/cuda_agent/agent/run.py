"""One run: its parts put together, played, and taken apart; begun or taken up again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cuda_agent.agent.best import Best
from cuda_agent.agent.budget import Accounts
from cuda_agent.agent.context import Context, Progress, Session
from cuda_agent.agent.files import Refusal, WorkspaceFiles
from cuda_agent.agent.judging import open_judge
from cuda_agent.agent.loop import Ending, Outcome, run
from cuda_agent.agent.policies.registry import make_policy
from cuda_agent.agent.policy import Brief, PolicyMaker
from cuda_agent.agent.shell import Shell, open_shell
from cuda_agent.agent.storage.journal import Checkpoint, Journal, read_journal
from cuda_agent.agent.storage.rundir import RunDirectory
from cuda_agent.agent.storage.store import Store
from cuda_agent.agent.tools.judged import snapshot
from cuda_agent.agent.tools.registry import Toolbox
from cuda_agent.core.config import Limits, OptimizeOptions
from cuda_agent.core.enums import Verdict
from cuda_agent.core.errors import CudaAgentError, StoreError
from cuda_agent.core.records import Budget, Candidate, Evaluation, RunManifest, Task, Trajectory, Turn
from cuda_agent.llm.keys import Key
from cuda_agent.reward import reward
from cuda_agent.workspace import layout
from cuda_agent.workspace.layout import Workspace


@dataclass(frozen=True)
class Standing:
    """How a run stands after a turn, for whoever watches. `times_us`: of every candidate that passed, in order."""

    agent: int
    budget: Budget
    best_us: float | None
    times_us: tuple[float, ...]


#: watch(standing): after each turn.
Watch = Callable[[Standing], None]


class JudgeMaker(Protocol):
    """`judging.open_judge`, or one that several runs share."""

    def __call__(
        self, task: Task, workspace: Workspace, progress: Progress, hidden: tuple[Path, ...], *, admitted: bool
    ) -> AbstractContextManager[tuple[Session, Path]]: ...


class Unsaved(StoreError):
    """The run is over because, or although, something could not be written; `trajectory` holds it as far as it came."""

    def __init__(self, error: CudaAgentError, trajectory: Trajectory) -> None:
        super().__init__(error.cause, error.remedy, detail=error.detail)
        self.trajectory = trajectory


@dataclass
class Run:
    """A run in its directory, which the caller holds locked. What the directory already has is gone on from."""

    task: Task
    options: OptimizeOptions
    policy: str | PolicyMaker
    directory: RunDirectory
    manifest: RunManifest
    progress: Progress = lambda phase, text: None
    watch: Watch = lambda standing: None
    judge: JudgeMaker = open_judge
    #: which of several that run side by side, counted from 1.
    agent: int = 1
    #: of a language model's endpoint; its file is out of sight for all that runs in a sandbox.
    key: Key | None = None
    #: what the agent may not see besides its own run directory.
    hidden: tuple[Path, ...] = ()
    #: the run whose best candidate is in the workspace at the start.
    seed: Trajectory | None = None

    def __post_init__(self) -> None:
        self.best = Best(self.directory.path)
        self._turns: list[Turn] = []
        self._device_s = 0.0
        self._stopped = threading.Event()
        self._shell: Shell | None = None

    def stop(self) -> None:
        """From another thread: end as an interrupt would. A command that runs in the shell ends with it."""
        self._stopped.set()
        shell = self._shell
        if shell is not None:
            shell.close()

    def play(self) -> Trajectory:
        """Run to an ending; whatever happens, the run directory says so.

        Raises what `optimize` says; a StoreError is an Unsaved.
        """
        self._turns = list(read_journal(self.directory.path))
        self._accounts = Accounts(self.options.limits, self._spent_before())
        failure: StoreError | None = None
        try:
            ending = self._play()
        except KeyboardInterrupt:
            ending = self._interrupted()
        except StoreError as error:
            ending, failure = Ending(Outcome.ERROR, str(error)), error
        except CudaAgentError as error:
            if not self._stopped.is_set():
                self._write_end(self._trajectory(Ending(Outcome.ERROR, str(error))))
                raise
            ending = self._interrupted()
        except BaseException:
            self._write_end(self._trajectory(Ending(Outcome.ERROR, "stopped by an unexpected error")))
            raise
        trajectory = self._trajectory(ending)
        unwritten = self._write_end(trajectory)
        # What failed first says most.
        failure = failure or unwritten
        if failure is not None:
            raise Unsaved(failure, trajectory)
        return trajectory

    def judge_again(self, candidate: Candidate) -> Evaluation:
        """The judge's word on a candidate of this run that is over; nothing is written. Raises what `play` raises."""
        hidden = (self.directory.path, *self.hidden)
        with self.judge(self.task, self._workspace(), self.progress, hidden, admitted=False) as (session, _socket):
            return session.evaluate(candidate)

    def _write_end(self, trajectory: Trajectory) -> StoreError | None:
        """What kept it from being written."""
        try:
            self.directory.write_end(self.manifest, trajectory)
        except StoreError as error:
            return error
        return None

    def _spent_before(self) -> Budget | None:
        """As it was when the run was left: at its last checkpoint, or at its end, where it came to one since."""
        checkpoint = self._checkpoint()
        known = [] if checkpoint is None else [checkpoint.budget]
        if (self.directory.path / Trajectory.file_name).exists():
            known.append(Trajectory.read(self.directory.path).budget)
        return max(known, key=lambda budget: budget.wall_s, default=None)

    def _checkpoint(self) -> Checkpoint | None:
        known = (self.directory.path / Checkpoint.file_name).exists()
        return Checkpoint.read(self.directory.path) if known else None

    def _interrupted(self) -> Ending:
        return Ending(Outcome.INTERRUPTED, f"interrupted after {len(self._turns)} turns")

    def _play(self) -> Ending:
        seed = self.seeded()
        with ExitStack() as stack:
            workspace = self._workspace()
            key_file = self.key.file if self.key is not None else None
            hidden = (self.directory.path, *self.hidden, *((key_file,) if key_file is not None else ()))
            admitted = bool(self._turns)
            session, socket = stack.enter_context(
                self.judge(self.task, workspace, self.progress, hidden, admitted=admitted)
            )
            shell = self._shell = stack.enter_context(open_shell(workspace, hidden=hidden, socket=socket))
            files = WorkspaceFiles(workspace.directory, self.directory.logs)
            context = Context(workspace, session, files, shell, self.best, self.directory.logs)
            tools = Toolbox(context)
            journal = Journal(self.directory.path, tools, self._accounts, self._turns)
            journal.resume()
            self._turns = journal.turns
            if seed is not None and seed.best is not None and seed.evaluation is not None:
                workspace.restore(seed.best)
                self.best.offer(seed.best, seed.evaluation)
            brief = self._brief(tools, session)
            try:
                policy = make_policy(self.policy, brief)
                ending = run(
                    policy, tools, journal, self.progress, stopped=self._stopped.is_set, watch=self._tell_standing
                )
                if ending.outcome is not Outcome.INTERRUPTED:
                    self._settle(context, session)
            finally:
                self._device_s = context.device_s
                if self.best.passed and self.best.candidate is not None:
                    workspace.restore(self.best.candidate)
            return ending

    def seeded(self) -> Trajectory | None:
        """The run that makes a first candidate, in a directory of its own inside this one's; None where none was asked
        for, or where this run is beyond its start. Raises what `play` raises, and KeyboardInterrupt."""
        begun = (self.directory.path / Checkpoint.file_name).exists()
        if self.seed is not None or self.options.seed_with is None or begun:
            return None if begun else self.seed
        directory = RunDirectory(self.directory.path / "seed")
        done = directory.ended()
        if done is not None:
            return done
        changes = {"policy": self.options.seed_with, "limits": Limits(), "parallel": 1, "seed_with": None, "llm": None}
        options = self.options.model_copy(update=changes)
        if directory.was_begun:
            manifest = directory.read_start()[2]
        else:
            directory = RunDirectory.create(directory.path, self.task.name)
            manifest = directory.write_start(self.task, options, self.manifest.command)
        hidden = (*self.hidden, self.directory.path)
        seed = Run(
            self.task, options, options.policy, directory, manifest, self.progress, judge=self.judge, hidden=hidden
        ).play()
        if seed.outcome == Outcome.INTERRUPTED.value:
            raise KeyboardInterrupt
        self.progress("agent", f"seed: {seed.outcome.replace('_', ' ')}: {seed.message}")
        return seed

    def _brief(self, tools: Toolbox, session: Session) -> Brief:
        judge = self.options.judge
        return Brief(
            task=self.task,
            device=judge.device,
            precision=judge.precision,
            limits=self.options.limits,
            tools=tools.schemas(),
            graph=session.graph,
            id=self.directory.path.name,
            candidate=Store(self.directory.path).candidate,
            notice=lambda text: self.progress("model", text),
            llm=self.options.llm,
            key=self.key,
        )

    def _workspace(self) -> Workspace:
        """The one that is there, or a new one where the run was ended before anything happened."""
        path = self.directory.workspace
        if self._turns or self._checkpoint() is not None:
            workspace, renewed = layout.renew(path)
            if renewed:
                self.progress("resume", f"files of the workspace in this version: {', '.join(renewed)}")
            return workspace
        self.directory.clear_workspace()
        return layout.create(self.task, path, options=self.options.judge)

    def _tell_standing(self, journal: Journal) -> None:
        budget = journal.turns[-1].budget or journal.budget()
        self.watch(Standing(self.agent, budget, self.best.latency_us, passed_times(journal.turns)))

    def _settle(self, context: Context, session: Session) -> None:
        """The final word on the best candidate: one full evaluation in a fresh worker.

        A precise Profile that passed is one already, and counts unless it won against others by its measured time.
        Where nothing passed, what stands in the workspace is judged, if it wasn't.
        """
        best = self.best
        started = time.monotonic()
        if best.passed and best.candidate is not None:
            rough = best.is_rough and self.options.judge.timing_stop == "settled"
            if best.passes > 1 or rough:
                self.progress("final", "measuring the best candidate again")
                again = session.evaluate(best.candidate)
                if again.verdict is not Verdict.TIMING_VOID:
                    best.replace(best.candidate, again)
        else:
            candidate = _standing(context)
            held = best.candidate.digest if best.candidate is not None else None
            if candidate is not None and candidate.digest != held:
                self.progress("final", "judging the workspace as it stands")
                best.offer(candidate, session.evaluate(candidate))
        context.judge_s += time.monotonic() - started

    def _trajectory(self, ending: Ending) -> Trajectory:
        evaluation = self.best.evaluation
        return Trajectory(
            task_key=self.task.key,
            task_name=self.task.name,
            policy=self.options.policy,
            turns=tuple(self._turns),
            budget=self._accounts.budget(self._turns, self._device_s),
            outcome=ending.outcome.value,
            message=ending.message,
            best=self.best.candidate,
            evaluation=evaluation,
            reward=reward(evaluation, self.options.judge.reward_baseline) if evaluation is not None else None,
            directory=str(self.directory.path),
        )


def passed_times(turns: list[Turn]) -> tuple[float, ...]:
    """Microseconds of each judged profile that passed, in order."""
    found = (result.data for turn in turns for result in turn.results if result.data.get("verdict") == "passed")
    times = (data.get("latency_us") for data in found)
    return tuple(float(time) for time in times if isinstance(time, int | float))


def _standing(context: Context) -> Candidate | None:
    """What the workspace holds now, where that is a candidate."""
    with suppress(Refusal):
        return snapshot(context)
    return None
