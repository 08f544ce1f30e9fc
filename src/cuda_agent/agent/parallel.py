"""Several independent agents on one task. Each has a run directory of its own, `agent-1` and so on, inside the run's;
they share the device through one pool, and the best candidate of all counts."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cuda_agent.agent.best import Best
from cuda_agent.agent.loop import RunOutcome
from cuda_agent.agent.run import AgentRun, Unsaved
from cuda_agent.agent.storage.rundir import RunDirectory
from cuda_agent.core.enums import Verdict
from cuda_agent.core.errors import StoreError
from cuda_agent.core.records import Budget, Evaluation, Trajectory
from cuda_agent.pool.session import PooledJudges
from cuda_agent.reward import reward
from cuda_agent.workspace import layout

#: fields of the budgets that are summed over the agents.
_SUMMED = (
    "turns_limit", "turns_spent", "judge_s", "judge_limit_s", "tokens", "tokens_limit", "cost", "cost_limit",
)  # fmt: skip
#: after an interrupt, an agent that still waits for a model's answer is left after so long; its run can be resumed.
_END_TIMEOUT_S = 15.0


class _Agent:
    """One agent, in a thread."""

    def __init__(self, whole: AgentRun, number: int, judges: PooledJudges) -> None:
        directory = RunDirectory(whole.directory.path / f"agent-{number}")
        options = whole.options.model_copy(update={"parallel": 1})
        self.result: Trajectory | None = directory.ended()
        self.error: BaseException | None = None
        self.run: AgentRun | None = None
        self.thread: threading.Thread | None = None
        if self.result is not None:
            return
        self.run = replace(
            whole,
            options=options,
            directory=directory,
            manifest=directory.begin(whole.task, options, whole.manifest.command),
            progress=lambda phase, text: whole.progress(phase, f"[{number}] {text}"),
            judge=judges,
            agent=number,
            hidden=(whole.directory.path,),
        )
        self.thread = threading.Thread(target=self._play, name=f"agent-{number}", daemon=True)
        self.thread.start()

    def _play(self) -> None:
        assert self.run is not None
        try:
            with self.run.directory.lock():
                self.result = self.run.play()
        except Unsaved as error:
            self.result, self.error = error.trajectory, error
        except BaseException as error:  # noqa: BLE001 - the boundary of a thread; `play` raises it
            self.error = error


def play(whole: AgentRun) -> Trajectory:
    """Plays all agents to their end. Returns the trajectory of the best one, with the budgets of all.

    An interrupt ends them all. Raises what `AgentRun.play` raises; if every agent failed, the first one's error.
    """
    from cuda_agent.pool.pool import Pool

    judge = whole.options.judge
    whole = replace(whole, seed=whole.seeded())
    with Pool(judge, hidden=whole.hidden_paths) as pool:
        agents = [_Agent(whole, number, PooledJudges(pool)) for number in range(1, whole.options.parallel + 1)]
        interrupted = False
        try:
            _wait(agents, None)
        except KeyboardInterrupt:
            interrupted = True
            for agent in agents:
                if agent.run is not None:
                    agent.run.stop()
            pool.close()
            _wait(agents, _END_TIMEOUT_S)
        results = [agent.result for agent in agents if agent.result is not None]
        # A single interrupted agent can be resumed, so the whole run can.
        interrupted = interrupted or any(run.outcome == RunOutcome.INTERRUPTED.value for run in results)
        if not results:
            raise next((agent.error for agent in agents if agent.error is not None), None) or KeyboardInterrupt
        best = _best(results)
        evaluation = best.evaluation
        several = sum(_time(run) is not None for run in results) > 1
        if several and not interrupted and best.best is not None:
            whole.progress("final", "measuring the best candidate of all again")
            again = pool.submit(whole.task, best.best).result()
            evaluation = again if again.verdict is not Verdict.TIMING_VOID else evaluation
    return _end(whole, results, best, evaluation, interrupted=interrupted)


def _wait(agents: Sequence[_Agent], timeout_s: float | None) -> None:
    for agent in agents:
        while agent.thread is not None and agent.thread.is_alive():
            # In pieces, so that a signal is seen at once.
            agent.thread.join(0.2 if timeout_s is None else timeout_s)
            if timeout_s is not None:
                break


def _best(results: Sequence[Trajectory]) -> Trajectory:
    """Returns the run with the fastest candidate, or the first one with a verdict if none passed."""
    timed = [(time, index) for index, run in enumerate(results) if (time := _time(run)) is not None]
    if timed:
        return results[min(timed)[1]]
    return next((run for run in results if run.evaluation is not None), results[0])


def _time(run: Trajectory) -> float | None:
    return run.evaluation.latency_us if run.evaluation is not None else None


def _end(
    whole: AgentRun,
    results: Sequence[Trajectory],
    best: Trajectory,
    evaluation: Evaluation | None,
    *,
    interrupted: bool,
) -> Trajectory:
    """Writes the run's own records and workspace. Raises Unsaved if they can't be written."""
    name = Path(best.directory or "").name
    trajectory = best.model_copy(
        update={
            "budget": _together([run.budget for run in results]),
            "outcome": RunOutcome.INTERRUPTED.value if interrupted else best.outcome,
            "message": f"{name}, the best of {whole.options.parallel}: {best.message}",
            "evaluation": evaluation,
            "reward": reward(evaluation, whole.options.judge.reward_baseline) if evaluation is not None else None,
            "directory": str(whole.directory.path),
        }
    )
    try:
        if best.best is not None and evaluation is not None:
            Best(whole.directory.path).replace(best.best, evaluation)
            whole.directory.clear_workspace()
            workspace = layout.create(whole.task, whole.directory.workspace, options=whole.options.judge)
            if evaluation.verdict is Verdict.PASSED:
                workspace.restore(best.best)
        whole.directory.write_end(whole.manifest, trajectory)
    except StoreError as error:
        raise Unsaved(error, trajectory) from None
    return trajectory


def _together(budgets: Sequence[Budget]) -> Budget:
    """Returns the budgets of all agents together. They ran at the same time."""

    def total(name: str) -> Any:
        values = [getattr(budget, name) for budget in budgets]
        return None if None in values else sum(values)

    return Budget(
        wall_s=max(budget.wall_s for budget in budgets),
        wall_limit_s=budgets[0].wall_limit_s,
        **{name: total(name) for name in _SUMMED},
    )
