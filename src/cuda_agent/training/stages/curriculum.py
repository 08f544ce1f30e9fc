"""Draws a step's tasks by the measured pass rates of their families (`Task.origin`): a family that never passes or
always passes teaches little."""

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence

from cuda_agent.core.enums import Milestone
from cuda_agent.core.records import Task
from cuda_agent.training.config import CurriculumOptions
from cuda_agent.training.episodes import Episode
from cuda_agent.training.stages.stage import draw_tasks


def draw_by_rates(
    tasks: Sequence[Task], count: int, seed: int, rates: Mapping[str, float], options: CurriculumOptions
) -> list[Task]:
    """Draws `count` tasks in random order. A task's weight is 1 where its family's pass rate is within the bounds or
    unknown, else `options.elsewhere`. A family's number follows from the weights, and is at least 1 where there is
    room. Its tasks are drawn equally often."""
    families: dict[str, list[Task]] = {}
    for task in tasks:
        families.setdefault(task.origin, []).append(task)
    weights = {
        name: len(own) * (1.0 if options.low <= rates.get(name, options.low) <= options.high else options.elsewhere)
        for name, own in families.items()
    }
    drawn = [
        draw_tasks(families[name], number, random.Random(f"{seed}/{name}").getrandbits(31))
        for name, number in _apportioned(weights, count).items()
    ]
    found = [task for own in drawn for task in own]
    random.Random(seed).shuffle(found)
    return found


def pass_rates(episodes: Sequence[Episode], tasks: Sequence[Task], step: int, steps: int) -> dict[str, float]:
    """Returns the share of passed episodes by family, over the `steps` steps before `step`. Episodes in which the judge
    failed don't count."""
    families = {task.key: task.origin for task in tasks}
    played: Counter[str] = Counter()
    passed: Counter[str] = Counter()
    for one in episodes:
        if step - steps <= one.policy_version < step and one.milestone is not None and one.task_key in families:
            played[families[one.task_key]] += 1
            passed[families[one.task_key]] += one.milestone is not Milestone.FAILED
    return {name: passed[name] / count for name, count in played.items()}


def _apportioned(weights: Mapping[str, float], count: int) -> dict[str, int]:
    """Returns whole numbers in proportion to the weights (largest remainders), each at least 1 where `count` allows."""
    least = 1 if count >= len(weights) else 0
    room = count - least * len(weights)
    total = sum(weights.values())
    shares = {name: room * weight / total if total else room / len(weights) for name, weight in weights.items()}
    numbers = {name: least + math.floor(share) for name, share in shares.items()}
    order = sorted(shares, key=lambda name: math.floor(shares[name]) - shares[name])
    for name in order[: count - sum(numbers.values())]:
        numbers[name] += 1
    return numbers
