"""Compares trainings on the same tasks: seeds of one recipe, and recipes with a part left out. It reads their folders
only; nothing is played and no device is needed."""

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from cuda_agent.core.assets import tables
from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.errors import UsageError
from cuda_agent.core.record import Record, StoredRecord
from cuda_agent.core.settings import differing
from cuda_agent.training.environment.judges import Judges, usable
from cuda_agent.training.environment.memo import stack_digest
from cuda_agent.training.environment.opening import EnvironmentOptions, read_tasks
from cuda_agent.training.evaluate import (
    METRICS,
    MetricDifference,
    SearchComparison,
    SearchScore,
    StageScore,
    TaskScore,
    compare,
    difference,
    differences,
    intervals,
)
from cuda_agent.training.held_out import HELD_OUT, STAGES, last_score, times_of
from cuda_agent.training.metrics import read_metrics
from cuda_agent.training.pocket.table import PlanChoice, table
from cuda_agent.training.stages.records import Halt, TrainingManifest

FULL = "full"
#: settings of the environment that say where the table is.
_OF_THE_TABLE = ("tasks", "most_tasks", "memo", "stack", "judge")
_CURVES = ("reward", "entropy", "explained_variance")


class StageSummary(Record):
    """One stage of all runs of a recipe on the held-out tasks. `by_seed`: metric -> its mean over tasks for each run,
    in the order of `seeds`. `score`: means over the runs for each task. `over_base`: `score` minus the base model's."""

    stage: str
    seeds: tuple[int, ...]
    by_seed: dict[str, tuple[float, ...]]
    score: StageScore
    over_base: tuple[MetricDifference, ...]


class RecipeSummary(Record):
    """All runs of one recipe. `over_full`: the last stage minus the full recipe's, for seeds of both. `halted`: run ->
    where and why a protective stop ended it. `unfinished`: run -> its last finished stage."""

    name: str
    runs: tuple[str, ...]
    seeds: tuple[int, ...]
    stages: tuple[StageSummary, ...]
    over_full: tuple[MetricDifference, ...] = ()
    halted: dict[str, str] = Field(default_factory=dict)
    unfinished: dict[str, str] = Field(default_factory=dict)


class Summary(StoredRecord):
    """Several trainings. `searches` has one search for the trained policies of each recipe, beside base, random and
    playbook. `gaps`: recipe -> its evaluations to 95 % and its speeds minus those of the others, paired by task.
    `curves`: run -> one line per step."""

    file_name = "summary.json"
    recipes: tuple[RecipeSummary, ...]
    searches: SearchComparison
    gaps: dict[str, tuple[MetricDifference, ...]]
    curves: dict[str, tuple[dict[str, float | str], ...]]


@dataclass(frozen=True)
class TrainingRun:
    """A training's folder."""

    folder: Path
    manifest: TrainingManifest
    recipe: str

    @property
    def seed(self) -> int:
        return int(self.manifest.configuration["seed"])

    def score(self, stage: str) -> StageScore | None:
        return last_score(self.folder, stage)

    def last(self) -> StageScore | None:
        """Returns the score after the last evaluated stage, None where the run hasn't ended."""
        if any(self.state()):
            return None
        return next((score for stage in reversed(STAGES) if (score := self.score(stage)) is not None), None)

    def state(self) -> tuple[str | None, str | None]:
        """Returns (why the run was halted or None, its last finished stage or None if the run has ended)."""
        ended = [one.stage for one in self.manifest.stages]
        wanted = [stage for stage in ("ppo", "rft", "warmup") if self.manifest.configuration.get(stage) is not None]
        if not wanted or wanted[0] in ended:
            return None, None
        for stage in ("warmup", "ppo"):
            if (halt := Halt.find(self.folder / stage)) is not None:
                return f"{stage} step {halt.step}: {halt.reason}", ended[-1] if ended else "nothing"
        return None, ended[-1] if ended else "nothing"


def read_runs(folders: Sequence[Path]) -> list[TrainingRun]:
    """Reads runs. The recipe of the first is the full one. Raises UsageError and StoreError."""
    found: list[TrainingRun] = []
    for folder in folders:
        manifest = TrainingManifest.find(folder)
        if manifest is None:
            raise UsageError(f"{folder} holds no training", "Give folders that cuda-agent train wrote")
        first = found[0].manifest if found else manifest
        found.append(TrainingRun(folder, manifest, recipe_name(first.configuration, manifest.configuration)))
    return found


def recipe_name(full: dict[str, Any], other: dict[str, Any]) -> str:
    """Returns a name for what differs in the second configuration."""
    same = tuple(tables(__file__)["same"].split())
    names = [name for name in differing(full, other) if not name.startswith(same)]
    for key, said in tables(__file__)["names"].items():
        if any(name == key or name.startswith(f"{key}.") for name in names):
            return str(said)
    return " ".join(f"{name}={json.dumps(_at(other, name))}" for name in names) or FULL


def _at(values: Any, name: str) -> Any:
    for part in name.split("."):
        values = values.get(part) if isinstance(values, dict) else None
    return values


def summarize(
    folders: Sequence[Path],
    *,
    budget: int,
    memo: Path | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Summary:
    """Summarises runs. `memo` is the folder of the table if it isn't the first run's. Runs without an evaluated stage
    are reported and left out. Raises UsageError and StoreError."""
    every = read_runs(folders)
    runs = [run for run in every if run.score("base") is not None]
    for run in every:
        if run not in runs:
            progress(f"{run.folder} is left out: no stage of it was evaluated")
    if not runs or runs[0] is not every[0]:
        raise UsageError(f"{folders[0]} was never evaluated", "Train with evaluate: true first")
    recipes = []
    for name in dict.fromkeys(run.recipe for run in runs):
        recipes.append(_recipe(name, [run for run in runs if run.recipe == name], runs))
    # Only a training whose tasks offer plans has a table to search.
    scores = [score for run in runs for stage in STAGES if (score := run.score(stage)) is not None]
    searched = any(task.to_near for score in scores for task in score.tasks)
    tables = _tables(runs[0], memo) if searched else {}
    searches = compare(tables, _players(runs) if searched else {}, budget=budget)
    return Summary(
        recipes=tuple(recipes), searches=searches, gaps=_gaps(searches, [one.name for one in recipes]),
        curves={run.folder.name: _curve(run) for run in runs},
    )  # fmt: skip


def _recipe(name: str, mine: Sequence[TrainingRun], every: Sequence[TrainingRun]) -> RecipeSummary:
    base = merged("base", [score for run in mine if (score := run.score("base")) is not None])
    states = {run.folder.name: run.state() for run in mine}
    return RecipeSummary(
        name=name,
        runs=tuple(run.folder.name for run in mine),
        seeds=tuple(run.seed for run in mine),
        stages=tuple(_stage(stage, mine, base) for stage in STAGES if any(run.score(stage) for run in mine)),
        over_full=_over_full(mine, [run for run in every if run.recipe == FULL]) if name != FULL else (),
        halted={run: halted for run, (halted, _) in states.items() if halted is not None},
        unfinished={run: last for run, (_, last) in states.items() if last is not None},
    )


def _stage(stage: str, runs: Sequence[TrainingRun], base: StageScore) -> StageSummary:
    found = [(run.seed, score) for run in runs if (score := run.score(stage)) is not None]
    whole = merged(stage, [score for _, score in found])
    return StageSummary(
        stage=stage,
        seeds=tuple(seed for seed, _ in found),
        by_seed={
            metric: tuple(getattr(score, metric).value for _, score in found)
            for metric in METRICS
            if all(getattr(score, metric) is not None for _, score in found)
        },
        score=whole,
        over_base=differences(whole, base) if stage != "base" else (),
    )


def _over_full(mine: Sequence[TrainingRun], full: Sequence[TrainingRun]) -> tuple[MetricDifference, ...]:
    """Returns the differences after the last stage of runs that have ended, paired by seed."""
    pairs = [
        (one, other)
        for run in mine
        for twin in full
        if run.seed == twin.seed and (one := run.last()) is not None and (other := twin.last()) is not None
    ]
    if not pairs:
        return ()
    return differences(merged("last", [one for one, _ in pairs]), merged("last", [other for _, other in pairs]))


def merged(stage: str, scores: Sequence[StageScore]) -> StageScore:
    """Averages several policies for each task, so that intervals are still over tasks."""
    keys = dict.fromkeys(task.task_key for score in scores for task in score.tasks)
    tasks = [_mean([task for score in scores for task in score.tasks if task.task_key == key]) for key in keys]
    hit_rate = statistics.fmean(one.hit_rate for one in scores)
    update = {"stage": stage, "tasks": tuple(tasks), "hit_rate": hit_rate, **intervals(tasks)}
    return scores[0].model_copy(update=update)


def _mean(rows: Sequence[TaskScore]) -> TaskScore:
    known = {name: [value for row in rows if (value := getattr(row, name)) is not None] for name in _MEANS}
    means = {name: statistics.fmean(values) if values else None for name, values in known.items()}
    passing = [row.geomean_passing for row in rows if row.geomean_passing is not None]
    return rows[0].model_copy(
        update={
            **means,
            "episodes": sum(row.episodes for row in rows),
            "geomean": statistics.geometric_mean(row.geomean for row in rows),
            "geomean_passing": statistics.geometric_mean(passing) if passing else None,
            "to_near": tuple(count for row in rows for count in row.to_near),
        }
    )


_MEANS = ("reward", "pass_rate", "pass_at_k", "faster_rate", "over_eager_rate", "over_both_rate", "evaluations")


def _tables(run: TrainingRun, memo: Path | None) -> dict[str, list[PlanChoice]]:
    """Returns the tables of the held-out tasks, with the verdicts on the run's stack."""
    manifest = run.manifest
    given = manifest.configuration["environment"]
    # What decides how episodes are played may have other names in another version, and isn't needed here.
    options = EnvironmentOptions.parse({name: given[name] for name in _OF_THE_TABLE if name in given})
    device = manifest.configuration["device"]
    if device == "auto":
        device = "cuda" if manifest.stack.gpus else "cpu"
    judge = JudgeOptions.parse({"device": device, **options.judge})
    folder = memo or (Path(options.memo) if options.memo is not None else run.folder / "memo")
    with Judges(folder, judge, stack=options.stack or stack_digest(manifest.stack, judge)) as judges:
        return {task.key: table(judges, task) for task in usable(judges, read_tasks(options)[1], "pocket")[0]}


def _players(runs: Sequence[TrainingRun]) -> dict[str, dict[str, list[list[float | None]]]]:
    """Returns recipe -> task key -> times of evaluations in order, for each run and each seed. Runs with the same base
    model share its episodes."""
    found: dict[str, dict[str, list[list[float | None]]]] = {}
    seen = set()
    for run in runs:
        for name, stage in ((run.recipe, "ppo"), ("base", "base")):
            path = run.folder / HELD_OUT / stage / f"{stage}.jsonl"
            if not path.exists() or (stage == "base" and path.read_bytes() in seen):
                continue
            seen.add(path.read_bytes())
            for key, sequences in times_of(path).items():
                found.setdefault(name, {}).setdefault(key, []).extend(sequences)
    return found


def _gaps(found: SearchComparison, recipes: Sequence[str]) -> dict[str, tuple[MetricDifference, ...]]:
    by_name = {search.name: search for search in found.searches}
    gaps: dict[str, tuple[MetricDifference, ...]] = {}
    for name in recipes:
        if name in by_name:
            others = [other for other in ("base", "random", "playbook", FULL) if other in by_name and other != name]
            gaps[name] = tuple(gap for other in others for gap in _search_gaps(by_name[name], by_name[other]))
    return gaps


def _search_gaps(mine: SearchScore, other: SearchScore) -> list[MetricDifference]:
    pairs = {"to_near": (mine.per_task, other.per_task)}
    pairs |= {f"speed by {n}": (speeds, other.speed_per_task[n]) for n, speeds in mine.speed_per_task.items()}
    return [
        difference(f"{metric} - {other.name}", [ours[key] - theirs[key] for key in ours if key in theirs])
        for metric, (ours, theirs) in pairs.items()
    ]


def _curve(run: TrainingRun) -> tuple[dict[str, float | str], ...]:
    lines = [line for line in read_metrics(run.folder) if line["stage"] in ("warmup", "ppo")]
    return tuple({key: line[key] for key in ("stage", "step", *_CURVES) if key in line} for line in lines)
