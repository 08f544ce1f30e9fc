"""The table of all choices of all tasks with their verdicts. Searches are measured against it."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from cuda_agent.core.errors import CudaAgentError
from cuda_agent.core.records import Candidate, Evaluation, Task
from cuda_agent.training.environment.judges import Judges
from cuda_agent.training.environment.memo import sources_digest

#: number of candidates with the pool's builders at a time.
_BUILDS_AHEAD = 16


@dataclass(frozen=True)
class PlanChoice:
    """A plan (counted from 1) with a setting, and its verdict or None."""

    plan: int
    name: str
    setting: dict[str, int]
    candidate: Candidate
    evaluation: Evaluation | None

    @property
    def us(self) -> float | None:
        return self.evaluation.latency_us if self.evaluation is not None else None

    @property
    def ratio(self) -> float | None:
        return self.evaluation.matched_ratio if self.evaluation is not None else None


def table(judges: Judges, task: Task) -> list[PlanChoice]:
    """Returns every choice of a task in the order of the plans, with the verdicts that the memo knows."""
    found = []
    for number, plan in enumerate(judges.offers(task), 1):
        for setting in plan.settings():
            candidate = plan.candidate(setting)
            known = judges.memo.known("evaluate", task.key, candidate)
            found.append(PlanChoice(number, plan.name, setting, candidate, known))
    return found


def playbook_order(choices: Sequence[PlanChoice]) -> list[PlanChoice]:
    """Sorts choices as the playbook's policy tries them: the default plan, then the plan with channels innermost, each
    with its settings in order. Plans that the policy never makes come last."""
    rank = {"fused": 0, "last": 1}
    return sorted(choices, key=lambda choice: rank.get(choice.name, 2))


def best_us(choices: Sequence[PlanChoice]) -> float | None:
    """Returns the time of the fastest choice that passed."""
    return min((choice.us for choice in choices if choice.us is not None), default=None)


def spread(choices: Sequence[PlanChoice]) -> float | None:
    """Returns the slowest choice's time / the fastest one's."""
    times = [choice.us for choice in choices if choice.us is not None]
    return max(times) / min(times) if times else None


@dataclass(frozen=True)
class Filled:
    """The state of the table. `failed`: task -> why it couldn't be judged. `refused`: the number of choices of tasks
    that the judge will always refuse."""

    known: int
    wanted: int
    refused: int
    failed: dict[str, str]
    seconds: float

    @property
    def whole(self) -> bool:
        return self.known + self.refused >= self.wanted


def fill(
    judges: Judges,
    tasks: Sequence[Task],
    *,
    limit_s: float,
    group: int = 4,
    progress: Callable[[str], None] = lambda text: None,
) -> Filled:
    """Measures unknown choices, `group` tasks at a time, until all are known or `limit_s` is over. Every verdict is
    stored at once. Candidates are compiled ahead, in the order of judging. The tasks of a group compile their baselines
    side by side."""
    begun = time.monotonic()
    failed: dict[str, str] = {}
    longest = 0.0
    parts = [_choices(judges, tasks[start : start + group]) for start in range(0, len(tasks), group)]
    parts = [part for part in parts if part]
    with judges.workers(_BUILDS_AHEAD) as builders:
        builds = [_builds(judges, part, builders) for part in parts]
        for number, (part, built) in enumerate(zip(parts, builds, strict=True), 1):
            # The next call measures a group that would exceed the limit.
            if time.monotonic() - begun + longest > limit_s:
                break
            before = time.monotonic()
            judges.admit({task.key: task for task, _ in part}.values())
            wait(built)
            verdicts = judges.evaluate_all(part)
            longest = max(longest, time.monotonic() - before)
            for (task, _), verdict in zip(part, verdicts, strict=True):
                if isinstance(verdict, CudaAgentError):
                    failed.setdefault(task.name, verdict.cause)
            took = time.monotonic() - before
            progress(
                f"group {number} of {len(parts)}: {len(part)} verdicts in {took:.0f} s ({took / len(part):.1f} each)"
            )
        builders.shutdown(wait=False, cancel_futures=True)
    rows = {task.key: table(judges, task) for task in tasks}
    every = [choice for row in rows.values() for choice in row]
    known = sum(choice.evaluation is not None for choice in every)
    refused = [choice for key in judges.inadmissible for choice in rows.get(key, ()) if choice.evaluation is None]
    return Filled(known, len(every), len(refused), failed, time.monotonic() - begun)


def _choices(judges: Judges, tasks: Sequence[Task]) -> list[tuple[Task, Candidate]]:
    """Returns the choices without a verdict."""
    return [(task, one.candidate) for task in tasks for one in table(judges, task) if one.evaluation is None]


def _builds(judges: Judges, part: Sequence[tuple[Task, Candidate]], threads: ThreadPoolExecutor) -> list[Future[None]]:
    """Starts a build for each set of compiled files."""
    sources = {sources_digest(candidate): (task, candidate) for task, candidate in part}
    return [threads.submit(judges.build, task, candidate) for task, candidate in sources.values()]
