"""Evaluates policies on the held-out tasks, and compares searches at an equal number of evaluations.

An evaluation is a timed verdict of the judge, whether the memo knew it or not. The main figure of a search is the
number of evaluations until a candidate reaches 95 % of the speed of the best choice in the exhaustive table.
Uncertainty is over tasks: a paired bootstrap of per-task means.
"""

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pydantic import Field

from cuda_agent.core.enums import Milestone
from cuda_agent.core.lines import append, read_lines, write_lines
from cuda_agent.core.record import Record, StoredRecord
from cuda_agent.core.records import Task
from cuda_agent.reward import MARGIN
from cuda_agent.training.episodes import Environment, Episode, Generate, read_episodes
from cuda_agent.training.pocket.table import PlanChoice, best_us, playbook_order, spread

SCORES = "scores.jsonl"
METRICS = (
    "reward", "pass_rate", "pass_at_k", "faster_rate", "over_eager_rate", "over_both_rate",
    "geomean", "geomean_passing",
)  # fmt: skip
#: means of these are geometric.
_RATIOS = frozenset({"geomean", "geomean_passing"})
#: share of the best choice's speed that counts as near.
NEAR = 0.95
#: the episodes of one seed are numbered below this.
SEED_STEP = 1_000_000
_RESAMPLES = 10_000
_SHUFFLES = 200


class TaskScore(Record):
    """One policy on one task: means over its episodes. `geomean` is the geometric mean of the matched baseline's time /
    the best candidate's; an episode without a candidate counts as 1 and is left out of
    `geomean_passing`. `pass_at_k` is the unbiased estimate of the probability that one of k episodes passes (Chen et
    al., 2021). `over_eager_rate` and `over_both_rate`: at least 5 % faster than eager, and than the compiled baseline
    too, by the milestone. What older records don't have is None. `to_near` has for each seed the evaluations until
    95 % of the best choice, None if its episodes together never reached it."""

    task_key: str
    task_name: str
    episodes: int
    reward: float
    pass_rate: float
    faster_rate: float
    geomean: float
    pass_at_k: float | None = None
    over_eager_rate: float | None = None
    over_both_rate: float | None = None
    geomean_passing: float | None = None
    evaluations: float
    to_near: tuple[int | None, ...] = ()


class Interval(Record):
    """A mean over tasks with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


class StageScore(StoredRecord):
    """A policy on all held-out tasks. `faster_rate` is the share that is at least 5 % faster than the matched
    baseline."""

    stage: str
    policy_version: int
    seeds: tuple[int, ...]
    episodes_per_task: int
    tasks: tuple[TaskScore, ...] = Field(min_length=1)
    reward: Interval
    pass_rate: Interval
    faster_rate: Interval
    #: geometric mean of the tasks' geometric means.
    geomean: Interval
    #: k of `pass_at_k`.
    k: int | None = None
    pass_at_k: Interval | None = None
    over_eager_rate: Interval | None = None
    over_both_rate: Interval | None = None
    geomean_passing: Interval | None = None
    #: share of the verdicts that the memo knew.
    hit_rate: float


class MetricDifference(Interval):
    """One policy minus another on the same tasks: the mean over tasks with the 95 % interval of a paired bootstrap."""

    metric: str

    @property
    def settled(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0


class SearchScore(Record):
    """One search on all tasks. `to_near` is the mean of evaluations over tasks; a task that never came near counts as
    `budget` + 1. `to_near_once` is the same if a candidate that was judged before costs nothing. `reached`: number of
    evaluations -> the share of tasks that are near by then. `speed`: number of evaluations -> the mean speed of the
    best candidate by then, where the best choice is 1 and no candidate 0; `speed_per_task` for each task."""

    name: str
    to_near: Interval
    to_near_once: Interval
    per_task: dict[str, float]
    reached: dict[int, float]
    speed: dict[int, Interval] = Field(default_factory=dict)
    speed_per_task: dict[int, dict[str, float]] = Field(default_factory=dict)


class SearchComparison(StoredRecord):
    """Searches at an equal number of evaluations."""

    file_name = "comparison.json"
    budget: int
    searches: tuple[SearchScore, ...]
    #: number of a task's choices, and its slowest choice's time / the fastest one's.
    choices: dict[str, int]
    spread: dict[str, float]
    #: stage -> its metrics minus those of the base model, paired by task.
    over_base: dict[str, tuple[MetricDifference, ...]] = Field(default_factory=dict)
    #: tasks that are left out because the table has no time for them.
    left_out: tuple[str, ...] = ()


def evaluate_stage(
    environment: Environment,
    tasks: Sequence[Task],
    sampler: Callable[[int], Generate],
    *,
    stage: str,
    folder: Path,
    seeds: Sequence[int] = (0, 1, 2),
    episodes: int = 4,
    k: int = 8,
    best: dict[str, float] | None = None,
) -> StageScore:
    """Plays `episodes` of every task for every seed. Writes them to `folder/STAGE.jsonl` and the score to
    `folder/scores.jsonl`. `best` has the time of the best choice by task key, where it is known. The draws of
    `sampler(seed)` follow from the seed. A seed that is on disk isn't played again.

    Raises what the environment raises.
    """
    path = folder / f"{stage}.jsonl"
    played = read_episodes(path)
    for seed in seeds:
        done = [episode for episode in played if episode.seed // SEED_STEP == seed]
        if len(done) >= episodes * len(tasks):
            continue
        if done:
            # A kill interrupted their writing.
            played = [episode for episode in played if episode.seed // SEED_STEP != seed]
            write_lines(path, played)
        many = [task for task in tasks for _ in range(episodes)]
        fresh = environment.play(many, sampler(seed), seed=seed * SEED_STEP)
        append(path, fresh)
        played += fresh
    score = score_of(stage, played, tasks, seeds=seeds, episodes=episodes, k=k, best=best or {})
    if all(one.stage != stage for one in read_scores(folder)):
        append(folder / SCORES, [score])
    return score


def read_scores(folder: Path) -> list[StageScore]:
    """Returns the scores in a folder, none if it has no file of them. Raises StoreError."""
    return read_lines(folder / SCORES, StageScore, optional=True)


def score_of(
    stage: str,
    played: Sequence[Episode],
    tasks: Sequence[Task],
    *,
    seeds: Sequence[int],
    episodes: int,
    best: dict[str, float],
    k: int = 8,
) -> StageScore:
    """Returns the score of played episodes. Those without a reward, because the judge failed, don't count."""
    scores = []
    for task in tasks:
        mine = [e for e in played if e.task_key == task.key and e.reward is not None]
        if mine:
            scores.append(_task_score(task, mine, seeds, best.get(task.key), k))
    asked, known = sum(e.evaluations for e in played), sum(e.memoised for e in played)
    return StageScore(
        stage=stage,
        policy_version=max((e.policy_version for e in played), default=0),
        seeds=tuple(seeds),
        episodes_per_task=episodes,
        tasks=tuple(scores),
        hit_rate=known / asked if asked else 0.0,
        k=k,
        **intervals(scores),
    )


def intervals(scores: Sequence[TaskScore]) -> dict[str, Interval]:
    """Returns the metrics of a StageScore: means over the tasks that have them, with their intervals."""
    found = {}
    for name in METRICS:
        values = [value for one in scores if (value := _value(one, name)) is not None]
        if values:
            mean = interval(values)
            ends = {end: math.exp(value) if name in _RATIOS else value for end, value in dict(mean).items()}
            found[name] = Interval(**ends)
    return found


def _value(score: TaskScore, metric: str) -> float | None:
    """Returns a metric of a task, as a logarithm where its means are geometric."""
    value: float | None = getattr(score, metric)
    return math.log(value) if value is not None and metric in _RATIOS else value


def pass_at(k: int, episodes: int, passed: int) -> float:
    """Returns 1 - C(n - c, k) / C(n, k) of n episodes of which c passed, with k at most n."""
    k = min(k, episodes)
    return 1.0 - math.comb(episodes - passed, k) / math.comb(episodes, k)


def _task_score(task: Task, mine: Sequence[Episode], seeds: Sequence[int], best: float | None, k: int) -> TaskScore:
    near = []
    for seed in seeds if best is not None else ():
        times = [us for e in mine if e.seed // SEED_STEP == seed for us, _ in e.judged]
        near.append(evaluations_to(times, best or 0.0))
    ratios = [e.ratio for e in mine if e.ratio is not None]
    both = Milestone.FASTER_THAN_BOTH
    return TaskScore(
        task_key=task.key,
        task_name=task.name,
        episodes=len(mine),
        reward=statistics.fmean(e.reward or 0.0 for e in mine),
        pass_rate=len(ratios) / len(mine),
        pass_at_k=pass_at(k, len(mine), len(ratios)),
        over_eager_rate=statistics.fmean(e.milestone in (Milestone.FASTER_THAN_EAGER, both) for e in mine),
        over_both_rate=statistics.fmean(e.milestone is both for e in mine),
        geomean_passing=statistics.geometric_mean(ratios) if ratios else None,
        faster_rate=statistics.fmean((e.ratio or 0.0) > 1 / (1 - MARGIN) for e in mine),
        geomean=math.exp(statistics.fmean(math.log(e.ratio or 1.0) for e in mine)),
        evaluations=statistics.fmean(len(e.judged) for e in mine),
        to_near=tuple(near),
    )


def differences(one: StageScore, other: StageScore) -> tuple[MetricDifference, ...]:
    """Returns `one` minus `other`, metric by metric, over the tasks for which both have it."""
    pairs = [(a, b) for a in one.tasks for b in other.tasks if a.task_key == b.task_key]
    found = []
    for metric in METRICS:
        values = [(_value(a, metric), _value(b, metric)) for a, b in pairs]
        gaps = [a - b for a, b in values if a is not None and b is not None]
        if gaps:
            found.append(difference(f"log {metric}" if metric in _RATIOS else metric, gaps))
    return tuple(found)


def difference(metric: str, gaps: Sequence[float]) -> MetricDifference:
    """Returns the mean of the tasks' differences with its interval."""
    return MetricDifference(metric=metric, **dict(interval(gaps)))


def evaluations_to(times_us: Sequence[float | None], best: float) -> int | None:
    """Returns the number of evaluations until a candidate came near the best time, or None."""
    return next((n for n, us in enumerate(times_us, 1) if us is not None and us <= best / NEAR), None)


def compare(
    tables: Mapping[str, Sequence[PlanChoice]],
    players: Mapping[str, Mapping[str, Sequence[Sequence[float | None]]]],
    *,
    budget: int,
) -> SearchComparison:
    """Compares searches. `tables`: task key -> all its choices. `players`: policy -> task key -> for each seed the
    times of its evaluations in order. Random search (without repeats) and the playbook's order come from the tables."""
    known = {key: choices for key, choices in tables.items() if best_us(choices) is not None}
    runs: dict[str, dict[str, list[Sequence[float | None]]]] = {
        name: {key: list(by_task.get(key, ())) for key in known} for name, by_task in players.items()
    }
    rng = random.Random(0)
    runs["random"] = {key: [_shuffled(choices, rng) for _ in range(_SHUFFLES)] for key, choices in known.items()}
    runs["playbook"] = {key: [[one.us for one in playbook_order(choices)]] for key, choices in known.items()}
    return SearchComparison(
        budget=budget,
        searches=tuple(_search(name, by_task, known, budget) for name, by_task in runs.items()),
        choices={key: len(choices) for key, choices in known.items()},
        spread={key: spread(choices) or 1.0 for key, choices in known.items()},
        left_out=tuple(sorted(set(tables) - set(known))),
    )


def _search(
    name: str,
    runs: dict[str, list[Sequence[float | None]]],
    tables: dict[str, Sequence[PlanChoice]],
    budget: int,
) -> SearchScore:
    counts = [count for count in sorted({1, 2, 4, 8, budget}) if count <= budget]

    best = {key: best_us(tables[key]) or 0.0 for key in runs}

    def mean(value: Callable[[Sequence[float | None], float, int], float], most: int = budget) -> dict[str, float]:
        """Returns for each task the mean of a value of a sequence of times, the best choice's time, and a number of
        evaluations."""
        played = {key: found or [[]] for key, found in runs.items()}
        return {
            key: statistics.fmean(value(times, best[key], most) for times in found) for key, found in played.items()
        }

    needed = mean(_needed)
    once = mean(lambda times, best, most: _needed(_judged_once(times), best, most))
    reached = {count: mean(lambda times, best, most: _needed(times, best, most) <= most, count) for count in counts}
    speed = {count: mean(_speed, count) for count in counts}
    return SearchScore(
        name=name,
        to_near=interval(list(needed.values())),
        to_near_once=interval(list(once.values())),
        per_task=needed,
        reached={count: statistics.fmean(by_task.values() or [0.0]) for count, by_task in reached.items()},
        speed={count: interval(list(by_task.values())) for count, by_task in speed.items()},
        speed_per_task=speed,
    )


def _needed(times_us: Sequence[float | None], best: float, most: int) -> int:
    return evaluations_to(times_us[:most], best) or most + 1


def _judged_once(times_us: Sequence[float | None]) -> list[float | None]:
    """Returns the times without repeats, for which the memo gives the same verdict. All failures stay."""
    return [us for place, us in enumerate(times_us) if us is None or us not in times_us[:place]]


def _speed(times_us: Sequence[float | None], best: float, most: int) -> float:
    """Returns the speed of the fastest candidate that passed, relative to the best choice and at most 1."""
    return min(1.0, max((best / us for us in times_us[:most] if us is not None), default=0.0))


def _shuffled(choices: Sequence[PlanChoice], rng: random.Random) -> list[float | None]:
    times = [one.us for one in choices]
    rng.shuffle(times)
    return times


def interval(values: Sequence[float]) -> Interval:
    """Returns the mean, with the 2.5 and 97.5 percentiles of the means of resampled tasks. Of paired differences it is
    the paired bootstrap."""
    if not values:
        return Interval(value=0.0, low=0.0, high=0.0)
    mean = statistics.fmean(values)
    if len(values) == 1:
        return Interval(value=mean, low=mean, high=mean)
    rng = random.Random(0)
    means = sorted(statistics.fmean(rng.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    return Interval(value=mean, low=means[int(0.025 * _RESAMPLES)], high=means[int(0.975 * _RESAMPLES) - 1])
