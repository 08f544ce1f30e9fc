"""Plays a checkpoint on the held-out tasks, and compares trainings with other searches there."""

from collections.abc import Sequence
from pathlib import Path

from cuda_agent.agent.device import resolve_device
from cuda_agent.agent.trained.checkpoint import make_sampler
from cuda_agent.agent.trained.sampler import load_model, torch_device
from cuda_agent.core.config import Configuration
from cuda_agent.core.errors import UsageError
from cuda_agent.core.records import Task
from cuda_agent.training.config import EpisodeLimits
from cuda_agent.training.environment.judges import Judges
from cuda_agent.training.environment.opening import Opening
from cuda_agent.training.episodes import read_episodes
from cuda_agent.training.evaluate import (
    METRICS,
    SEED_STEP,
    SearchComparison,
    StageScore,
    compare,
    differences,
    evaluate_stage,
    read_scores,
)
from cuda_agent.training.pocket.table import best_us, table

#: folder in a training's folder, with one folder for each stage.
HELD_OUT = "held-out"
STAGES = ("base", "warmup", "rft", "ppo")


class HeldOutOptions(Configuration):
    """How often and within which limits each held-out task is played."""

    seeds: tuple[int, ...] = (0, 1, 2)
    episodes: int = 8
    #: k of pass@k.
    k: int = 8
    limits: EpisodeLimits = EpisodeLimits()


def evaluate_checkpoint(
    opening: Opening,
    checkpoint: Path,
    directory: Path,
    *,
    held_out: HeldOutOptions | None = None,
) -> StageScore:
    """Plays the held-out tasks. Writes the episodes and the score to `directory`, under its name. Raises UsageError if
    no task is held out, and what the environment raises."""
    how = held_out or HeldOutOptions()
    with opening.environment(checkpoint, how.limits) as opened:
        if not opened.held_out:
            raise UsageError(f"{opening.options.tasks} holds no held-out task", "Set evaluate: false")
        environment, judges = opened.environment, opened.environment.judges
        model = load_model(checkpoint, torch_device(resolve_device(opening.device)))
        score = evaluate_stage(
            environment,
            opened.held_out,
            lambda seed: make_sampler(model, environment.dialogue, environment.settings, seed),
            stage=directory.name,
            folder=directory,
            seeds=how.seeds,
            episodes=how.episodes,
            k=how.k,
            best=known_best(judges, opened.held_out),
        )
        opening.progress(f"{directory.name}: {said(score)}; {judges.memo.hit_rate:.0%} of the verdicts were known")
    return score


def known_best(judges: Judges, tasks: Sequence[Task]) -> dict[str, float]:
    """Returns the fastest choice's time of each task whose choices are all known."""
    found = {}
    for task in tasks:
        choices = table(judges, task)
        best = best_us(choices)
        if best is not None and all(one.evaluation is not None for one in choices):
            found[task.key] = best
    return found


def said(score: StageScore) -> str:
    """Returns the score in one line."""
    parts = {name: one for name in METRICS if (one := getattr(score, name)) is not None}
    return ", ".join(f"{name} {one.value:.3f} [{one.low:.3f}, {one.high:.3f}]" for name, one in parts.items())


def numbers(score: StageScore) -> dict[str, float]:
    """Returns the score as flat numbers, for a manifest."""
    found = {name: one.value for name in METRICS if (one := getattr(score, name)) is not None}
    near = [count for task in score.tasks for count in task.to_near]
    reached = [count for count in near if count is not None]
    if near:
        found["near_share"] = len(reached) / len(near)
    if reached:
        found["evaluations_to_near"] = sum(reached) / len(reached)
    return {**found, "hit_rate": score.hit_rate}


def last_score(training: Path, stage: str) -> StageScore | None:
    """Returns the last score of a stage, None if it wasn't evaluated. Raises StoreError."""
    scores = read_scores(training / HELD_OUT / stage)
    return scores[-1] if scores else None


def compare_training(opening: Opening, players: dict[str, Path], *, budget: int) -> SearchComparison:
    """Compares searches without playing: times come from the episodes and the memo. `players`: policy -> its file of
    held-out episodes. Writes `comparison.json` in the training's folder. Raises StoreError, and UsageError without
    episodes."""
    runs = {name: times_of(path) for name, path in players.items()}
    with opening.judges() as (judges, _, held):
        tables = {task.key: table(judges, task) for task in held}
    scores = {stage: score for stage in STAGES if (score := last_score(opening.folder, stage)) is not None}
    first, *rest = scores or [""]
    over_base = {stage: differences(scores[stage], scores[first]) for stage in rest}
    found = compare(tables, runs, budget=budget).model_copy(update={"over_base": over_base})
    found.write(opening.folder)
    return found


def times_of(path: Path) -> dict[str, list[list[float | None]]]:
    """Returns task key -> for each seed the times of its evaluations in order. Raises UsageError."""
    by_task: dict[str, dict[int, list[float | None]]] = {}
    for episode in read_episodes(path):
        seeds = by_task.setdefault(episode.task_key, {})
        seeds.setdefault(episode.seed // SEED_STEP, []).extend(us for us, _ in episode.judged)
    if not by_task:
        raise UsageError(f"{path} holds no episodes", "Train with evaluate: true first")
    return {key: list(seeds.values()) for key, seeds in by_task.items()}
