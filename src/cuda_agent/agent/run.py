"""One run of an agent: it is started or resumed, played to its end, and recorded."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cuda_agent.agent.best import Best
from cuda_agent.agent.budget import Accounts
from cuda_agent.agent.context import Progress, Session, ToolContext
from cuda_agent.agent.files import CallRefused, WorkspaceFiles
from cuda_agent.agent.judging import open_judge
from cuda_agent.agent.loop import Ending, RunOutcome, run
from cuda_agent.agent.policies.registry import make_policy
from cuda_agent.agent.policy import Brief, PolicyMaker
from cuda_agent.agent.shell import Shell, open_shell
from cuda_agent.agent.storage.journal import Checkpoint, RunJournal
from cuda_agent.agent.storage.rundir import RunDirectory
from cuda_agent.agent.storage.store import ContentStore
from cuda_agent.agent.storage.transcript import passed_times, read_transcript
from cuda_agent.agent.tools.judged import judging, snapshot
from cuda_agent.agent.tools.registry import Toolbox
from cuda_agent.agent.winners import Winners
from cuda_agent.core.config import Limits, OptimizeOptions
from cuda_agent.core.enums import Verdict
from cuda_agent.core.errors import CudaAgentError, StoreError
from cuda_agent.core.records import Budget, RunManifest, Task, Trajectory, Turn
from cuda_agent.llm.keys import Key
from cuda_agent.reward import reward
from cuda_agent.workspace import layout
from cuda_agent.workspace.layout import Workspace


@dataclass(frozen=True)
class RunStatus:
    """The state of a run after a turn, for display. `times_us` are the times of the candidates that passed, in
    order."""

    agent: int
    budget: Budget
    best_us: float | None
    times_us: tuple[float, ...]


#: watch(status) is called after each turn.
Watch = Callable[[RunStatus], None]


class JudgeMaker(Protocol):
    """`judging.open_judge`, or a judge that several runs share."""

    def __call__(
        self, task: Task, workspace: Workspace, progress: Progress, hidden: tuple[Path, ...], *, admitted: bool
    ) -> AbstractContextManager[tuple[Session, Path]]: ...


class Unsaved(StoreError):
    """Something could not be written at the end of the run. `trajectory` holds the run in memory."""

    def __init__(self, error: CudaAgentError, trajectory: Trajectory) -> None:
        super().__init__(error.cause, error.remedy, detail=error.detail)
        self.trajectory = trajectory


@dataclass
class AgentRun:
    """A run in its directory, which the caller has locked. If the directory holds turns, the run continues from
    them."""

    task: Task
    options: OptimizeOptions
    policy: str | PolicyMaker
    directory: RunDirectory
    manifest: RunManifest
    progress: Progress = lambda phase, text: None
    watch: Watch = lambda standing: None
    judge: JudgeMaker = open_judge
    #: its number among agents that run side by side, counted from 1.
    agent: int = 1
    #: key of a language model's endpoint. Its file is hidden in every sandbox.
    key: Key | None = None
    #: paths that are hidden from the agent besides its own run directory.
    hidden: tuple[Path, ...] = ()
    #: the run whose best candidate stands in the workspace at the start.
    seed: Trajectory | None = None

    def __post_init__(self) -> None:
        self.best = Best(self.directory.path)
        self._turns: list[Turn] = []
        self._device_s = 0.0
        self._stopped = threading.Event()
        self._shell: Shell | None = None

    @property
    def hidden_paths(self) -> tuple[Path, ...]:
        """All paths that are hidden from the agent."""
        key_file = self.key.file if self.key is not None else None
        return (self.directory.path, *self.hidden, *((key_file,) if key_file is not None else ()))

    def stop(self) -> None:
        """Ends the run as an interrupt would, from another thread. A command in the shell ends with it."""
        self._stopped.set()
        shell = self._shell
        if shell is not None:
            shell.close()

    def play(self) -> Trajectory:
        """Plays to the end and records the outcome in the run directory, whatever happens. Raises what `optimize`
        raises; a StoreError is an Unsaved."""
        self._turns = list(read_transcript(self.directory.path))
        self._accounts = Accounts(self.options.limits, self._spent_before())
        failure: StoreError | None = None
        try:
            ending = self._play()
        except KeyboardInterrupt:
            ending = self._interrupted()
        except StoreError as error:
            ending, failure = Ending(RunOutcome.ERROR, str(error)), error
        except CudaAgentError as error:
            if not self._stopped.is_set():
                self._write_end(self._trajectory(Ending(RunOutcome.ERROR, str(error))))
                raise
            ending = self._interrupted()
        except BaseException:
            self._write_end(self._trajectory(Ending(RunOutcome.ERROR, "stopped by an unexpected error")))
            raise
        trajectory = self._trajectory(ending)
        unwritten = self._write_end(trajectory)
        # The first failure is the cause.
        failure = failure or unwritten
        if failure is not None:
            raise Unsaved(failure, trajectory)
        return trajectory

    def _write_end(self, trajectory: Trajectory) -> StoreError | None:
        """Returns the error that prevented it."""
        try:
            self.directory.write_end(self.manifest, trajectory)
        except StoreError as error:
            return error
        return None

    def _spent_before(self) -> Budget | None:
        """Returns the budget at the last checkpoint, or at the end of the run if it has ended since."""
        path = self.directory.path
        known = [record.budget for record in (Checkpoint.find(path), Trajectory.find(path)) if record is not None]
        return max(known, key=lambda budget: budget.wall_s, default=None)

    def _interrupted(self) -> Ending:
        return Ending(RunOutcome.INTERRUPTED, f"interrupted after {len(self._turns)} turns")

    def _play(self) -> Ending:
        seed = self.seeded()
        with ExitStack() as stack:
            workspace = self._workspace()
            hidden, admitted = self.hidden_paths, bool(self._turns)
            session, socket = stack.enter_context(
                self.judge(self.task, workspace, self.progress, hidden, admitted=admitted)
            )
            shell = self._shell = stack.enter_context(open_shell(workspace, hidden=hidden, socket=socket))
            files = WorkspaceFiles(workspace.directory, self.directory.logs)
            context = ToolContext(workspace, session, files, shell, self.best, self.directory.logs)
            tools = Toolbox(context)
            journal = RunJournal(self.directory.path, tools, self._accounts, self._turns)
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
                if ending.outcome is not RunOutcome.INTERRUPTED:
                    self._settle(context, session)
            finally:
                self._device_s = context.device_s
                if self.best.passed and self.best.candidate is not None:
                    workspace.restore(self.best.candidate)
            return ending

    def seeded(self) -> Trajectory | None:
        """Returns the run that makes the first candidate, in its own directory inside this one, or None if none was
        requested or this run is past its start. Raises what `play` raises, and KeyboardInterrupt."""
        begun = Checkpoint.find(self.directory.path) is not None
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
        seed = AgentRun(
            self.task, options, options.policy, directory, manifest, self.progress, judge=self.judge, hidden=hidden
        ).play()
        if seed.outcome == RunOutcome.INTERRUPTED.value:
            raise KeyboardInterrupt
        self.progress("agent", f"seed: {seed.outcome.replace('_', ' ')}: {seed.message}")
        return seed

    def _brief(self, tools: Toolbox, session: Session) -> Brief:
        judge, winners = self.options.judge, self.options.winners
        return Brief(
            task=self.task,
            device=judge.device,
            precision=judge.precision,
            limits=self.options.limits,
            tools=tools.schemas(),
            graph=session.graph,
            id=self.directory.path.name,
            candidate=ContentStore(self.directory.path).candidate,
            notice=lambda text: self.progress("model", text),
            llm=self.options.llm,
            key=self.key,
            winners=Winners(winners, self.manifest.stack) if winners is not None else None,
        )

    def _workspace(self) -> Workspace:
        """Returns the existing workspace, or a new one if the run was ended before anything happened."""
        path = self.directory.workspace
        if self._turns or Checkpoint.find(self.directory.path) is not None:
            workspace, renewed = layout.renew(path)
            if renewed:
                self.progress("resume", f"files of the workspace in this version: {', '.join(renewed)}")
            return workspace
        self.directory.clear_workspace()
        return layout.create(self.task, path, options=self.options.judge)

    def _tell_standing(self, journal: RunJournal) -> None:
        budget = journal.turns[-1].budget or journal.budget()
        self.watch(RunStatus(self.agent, budget, self.best.latency_us, passed_times(journal.turns)))

    def _settle(self, context: ToolContext, session: Session) -> None:
        """Evaluates the best candidate once more, fully and in a fresh worker.

        A precise Profile that passed already is such an evaluation, unless the candidate won against others by its
        measured time. If nothing passed, the workspace is judged as it stands, unless that was done.
        """
        best = self.best
        with judging(context), suppress(CallRefused):
            if best.passed and best.candidate is not None:
                rough = best.is_rough and self.options.judge.timing_stop == "settled"
                if best.passes > 1 or rough:
                    self.progress("final", "measuring the best candidate again")
                    again = session.evaluate(best.candidate)
                    if again.verdict is not Verdict.TIMING_VOID:
                        best.replace(best.candidate, again)
                return
            candidate = snapshot(context)
            if best.candidate is None or best.candidate.digest != candidate.digest:
                self.progress("final", "judging the workspace as it stands")
                best.offer(candidate, session.evaluate(candidate))

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
