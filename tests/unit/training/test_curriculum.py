"""Tasks are drawn by the pass rates of their families."""

from __future__ import annotations

from collections import Counter

import pytest
from pydantic import ValidationError

from cuda_agent.core.enums import Milestone
from cuda_agent.core.records import Task
from cuda_agent.training.config import CurriculumOptions, TrainingOptions
from cuda_agent.training.episodes import Episode
from cuda_agent.training.stages.curriculum import draw_by_rates, pass_rates

TASKS = [Task(name=f"{family}{n}", source=f"{family} {n}", origin=family) for family in "abc" for n in range(10)]
OPTIONS = CurriculumOptions()


def episode(task: Task, milestone: Milestone | None, step: int) -> Episode:
    return Episode(
        task_key=task.key, task_name=task.name, prompt_ids=(1,), response_ids=(2,), mask=(1,), log_probabilities=(0.0,),
        reward=None if milestone is None else -1.0, milestone=milestone, truncated=False, turns=1, policy_version=step,
    )  # fmt: skip


def families(tasks: list[Task]) -> Counter[str]:
    return Counter(task.origin for task in tasks)


def test_families_between_the_bounds_are_preferred_and_the_others_stay_known() -> None:
    drawn = families(draw_by_rates(TASKS, 63, 1, {"a": 0.0, "b": 0.3, "c": 1.0}, OPTIONS))
    # 3 of 63 are certain; the other 60 follow the weights 0.1, 1 and 0.1.
    assert drawn == {"a": 6, "b": 51, "c": 6}
    assert families(draw_by_rates(TASKS, 4, 1, {"a": 0.0, "b": 0.3, "c": 1.0}, OPTIONS)) == {"a": 1, "b": 2, "c": 1}


def test_unknown_rates_and_the_bounds_themselves_are_preferred() -> None:
    assert set(families(draw_by_rates(TASKS, 30, 1, {}, OPTIONS)).values()) == {10}
    drawn = families(draw_by_rates(TASKS, 30, 1, {"a": 0.05, "b": 0.7, "c": 0.71}, OPTIONS))
    assert drawn["a"] == drawn["b"] > 3 * drawn["c"]


def test_a_familys_tasks_are_drawn_equally_often_and_the_seed_decides() -> None:
    drawn = draw_by_rates(TASKS, 90, 5, {}, OPTIONS)
    assert set(Counter(task.name for task in drawn).values()) == {3}
    assert drawn == draw_by_rates(TASKS, 90, 5, {}, OPTIONS) != draw_by_rates(TASKS, 90, 6, {}, OPTIONS)
    assert len(draw_by_rates(TASKS, 2, 5, {}, OPTIONS)) == 2


def test_rates_are_those_of_the_last_steps() -> None:
    a, b = TASKS[0], TASKS[10]
    played = [
        episode(a, Milestone.FAILED, 0), episode(a, Milestone.CORRECT, 3), episode(a, Milestone.FAILED, 4),
        episode(b, Milestone.FASTER_THAN_BOTH, 4), episode(b, None, 4), episode(b, Milestone.FAILED, 5),
    ]  # fmt: skip
    assert pass_rates(played, TASKS, 5, 4) == {"a": 0.5, "b": 1.0}
    assert pass_rates(played, TASKS, 1, 4) == {"a": 0.0}


def test_ray_has_no_curriculum() -> None:
    stage = {"steps": 1, "batch": 8, "actor_lr": 1.0, "critic_lr": 1.0, "whiten": True, "curriculum": {}}
    with pytest.raises(ValidationError, match="ray` draws all tasks before it plays"):
        TrainingOptions.model_validate({"name": "x", "launcher": "ray", "warmup": stage})
