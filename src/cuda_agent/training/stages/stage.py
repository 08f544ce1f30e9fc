"""The input and the result of every stage."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cuda_agent.core.records import Task
from cuda_agent.training.config import TrainingOptions
from cuda_agent.training.stages.domain import Domain

#: progress(phase, text) shows one line to the user.
Progress = Callable[[str, str], None]


@dataclass(frozen=True)
class TrainingStage:
    """One stage of a run. `directory` is its folder inside `run`. It starts from `policy` and `critic`."""

    name: str
    run: Path
    options: TrainingOptions
    domain: Domain
    device: str
    policy: str
    critic: str | None
    progress: Progress

    @property
    def directory(self) -> Path:
        return self.run / self.name

    def seed(self, step: int) -> int:
        """Returns the seed of a step, which is the same after a resumption."""
        return random.Random(f"{self.options.seed}/{self.name}/{step}").getrandbits(31)


@dataclass(frozen=True)
class StageResult:
    """The folders of a stage's models. None: the previous model remains."""

    policy: Path | None = None
    critic: Path | None = None
    steps: int = 0
    numbers: dict[str, float] | None = None


def draw_tasks(tasks: Sequence[Task], count: int, seed: int) -> list[Task]:
    """Draws every task equally often and the rest at random, in random order."""
    chosen = list(tasks) * (count // len(tasks))
    order = random.Random(seed)
    chosen += order.sample(list(tasks), count - len(chosen))
    order.shuffle(chosen)
    return chosen
