"""What a training stands on: its tasks, the environment that plays them, the model that everything begins with."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from cuda_agent.core.records import Task
from cuda_agent.training.episodes import Environment, Generate


class Ground(Protocol):
    """Made from `TrainingOptions.environment`. The stages know no more of the tasks than this."""

    def tasks(self) -> Sequence[Task]:
        """Those that are trained on. Never a held-out one."""
        ...

    def environment(self, *, single_turn: bool) -> AbstractContextManager[Environment]:
        """`single_turn`: one answer an episode, no tool between."""
        ...

    def base(self, directory: Path) -> None:
        """Write the model that the training begins with, in transformers' format. Raises CudaAgentError."""
        ...

    def evaluate(self, policy: Path, generate: Generate, directory: Path, *, seed: int) -> dict[str, float]:
        """Play the held-out tasks; flat numbers. What is worth keeping beside them goes to `directory`."""
        ...
