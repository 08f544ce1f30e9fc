"""One task, one policy, one run directory: the whole job behind `cuda-agent optimize`."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from cuda_agent.agent.best import Best
from cuda_agent.agent.context import Context, Progress, Session
from cuda_agent.agent.device import resolve_device
from cuda_agent.agent.files import Refusal, WorkspaceFiles
from cuda_agent.agent.judging import open_judge
from cuda_agent.agent.loop import Ending, Outcome, run
from cuda_agent.agent.policy import Brief, PolicyMaker, make_policy, policy_name
from cuda_agent.agent.rundir import RunDirectory
from cuda_agent.agent.shell import open_shell
from cuda_agent.agent.taskfile import load_task
from cuda_agent.agent.tools.judged import snapshot
from cuda_agent.agent.tools.registry import Toolbox
from cuda_agent.agent.transcript import Transcript
from cuda_agent.core.config import JudgeOptions, OptimizeOptions
from cuda_agent.core.enums import Verdict
from cuda_agent.core.errors import CudaAgentError
from cuda_agent.core.records import Budget, Candidate, RunManifest, Task, Trajectory
from cuda_agent.reward import reward
from cuda_agent.workspace import layout


def optimize(
    task: Task | str | Path,
    *,
    out: str | Path | None = None,
    device: str = "auto",
    policy: str | PolicyMaker = "playbook",
    precision: str = "tf32",
    turns: int = 60,
    progress: Progress | None = None,
    command: tuple[str, ...] = (),
    **judge: object,
) -> Trajectory:
    """Make a task faster; returns what is also in the run directory (`trajectory.directory`).

    `task` is a record or the path of a task file; `policy` a name, or a function that makes one from its `Brief`.
    Further keywords are settings of the judge (`JudgeOptions`, such as `timing_budget_s=10`). An interrupt ends the run
    and is an outcome, not an exception.

    Raises UsageError, TaskError, DeviceError, SandboxError, StoreError, WorkerError. A run directory that was begun is
    whole all the same.
    """
    record = task if isinstance(task, Task) else load_task(task)
    name = policy_name(policy)
    judged = JudgeOptions.parse({"device": resolve_device(device), "precision": precision, **judge})
    options = OptimizeOptions.parse({"judge": judged, "policy": name, "limits": {"turns": turns}})
    directory = RunDirectory.create(out, record.name)
    manifest = directory.write_start(record, options, command)
    return _Run(record, options, policy, directory, manifest, progress or (lambda phase, text: None)).play()


def _standing(context: Context) -> Candidate | None:
    """What the workspace holds now, where that is a candidate."""
    try:
        return snapshot(context)
    except Refusal:
        return None


class _Run:
    """The parts of one run, put together and taken apart."""

    def __init__(
        self,
        task: Task,
        options: OptimizeOptions,
        policy: str | PolicyMaker,
        directory: RunDirectory,
        manifest: RunManifest,
        progress: Progress,
    ) -> None:
        self.policy = policy
        self.task, self.options, self.directory, self.manifest = task, options, directory, manifest
        self.progress = progress
        self.transcript = Transcript(directory.path)
        self.best = Best(directory.path)
        self.started = time.monotonic()
        self.judge_s = 0.0

    def play(self) -> Trajectory:
        """Run to an ending; whatever happens, the run directory says so."""
        ending = Ending(Outcome.ERROR, "stopped by an unexpected error")
        try:
            ending = self._play()
        except KeyboardInterrupt:
            ending = Ending(Outcome.INTERRUPTED, f"interrupted after {len(self.transcript.turns)} turns")
        except CudaAgentError as error:
            ending = Ending(Outcome.ERROR, str(error))
            raise
        finally:
            trajectory = self._trajectory(ending)
            self.directory.write_end(self.manifest, trajectory)
        return trajectory

    def _play(self) -> Ending:
        judge = self.options.judge
        with ExitStack() as stack:
            workspace = layout.create(self.task, self.directory.workspace, options=judge)
            hidden = (self.directory.path,)
            session, socket = stack.enter_context(open_judge(self.task, workspace, self.progress, hidden))
            shell = stack.enter_context(open_shell(workspace, hidden=hidden, socket=socket))
            files = WorkspaceFiles(workspace.directory, self.directory.logs)
            context = Context(workspace, session, files, shell, self.best, self.directory.logs)
            tools = Toolbox(context)
            brief = Brief(self.task, judge.device, judge.precision, self.options.limits, tools.schemas(), session.graph)
            try:
                policy = make_policy(self.policy, brief)
                ending = run(policy, tools, self.transcript, self.options.limits.turns, self.progress)
                if ending.outcome is not Outcome.INTERRUPTED:
                    self._settle(context, session)
            finally:
                self.judge_s = context.judge_s
                if self.best.passed and self.best.candidate is not None:
                    workspace.restore(self.best.candidate)
            return ending

    def _settle(self, context: Context, session: Session) -> None:
        """The final word on the best candidate: one full evaluation in a fresh worker.

        A passed Profile is one already, and counts unless it won against others by its measured time. Where nothing
        passed, what stands in the workspace is judged, if it wasn't.
        """
        best = self.best
        started = time.monotonic()
        if best.passed and best.candidate is not None:
            if best.passes > 1:
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
            turns=tuple(self.transcript.turns),
            budget=Budget(
                turns_limit=self.options.limits.turns,
                turns_spent=len(self.transcript.turns),
                wall_s=time.monotonic() - self.started,
                judge_s=self.judge_s,
                tokens=sum(turn.tokens_in + turn.tokens_out for turn in self.transcript.turns),
            ),
            outcome=ending.outcome.value,
            message=ending.message,
            best=self.best.candidate,
            evaluation=evaluation,
            reward=reward(evaluation, self.options.judge.reward_baseline) if evaluation is not None else None,
            directory=str(self.directory.path),
        )
