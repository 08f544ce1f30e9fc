"""What a training stands on: its tasks, the environment that plays them, the model that everything begins with."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cuda_agent.core.records import Task
from cuda_agent.training.episodes import Environment


@dataclass(frozen=True)
class OpenDomain:
    """An open environment, the tasks that are trained on (never a held-out one), and how much a policy may say: in one
    turn, and prompt, own tokens and observations together."""

    environment: Environment
    tasks: Sequence[Task]
    turn_tokens: int
    context_tokens: int


class Domain(Protocol):
    """Made from `TrainingOptions.environment`. The stages know no more of the tasks than this."""

    def open(self, checkpoint: Path, *, single_turn: bool) -> AbstractContextManager[OpenDomain]:
        """`checkpoint`: a policy of this training, for its tokenizer. `single_turn`: one answer an episode. Raises
        UsageError, StoreError, DeviceError."""
        ...

    def in_cluster(self) -> Domain:
        """The same in a process of a Ray cluster, which may judge elsewhere."""
        ...

    def base(self, directory: Path) -> Path:
        """Make the model that the training begins with; a folder in transformers' format inside `directory`. Raises
        CudaAgentError."""
        ...

    def evaluate(self, checkpoint: Path, directory: Path) -> dict[str, float]:
        """Play the held-out tasks; flat numbers. What is worth keeping beside them goes to `directory`."""
        ...
