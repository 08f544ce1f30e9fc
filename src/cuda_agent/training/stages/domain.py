"""The protocol of a training's domain: its tasks, the environment that plays them, the base model."""

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
    """An open environment and the tasks to train on, never a held-out one. `turn_tokens` limits one turn of the policy,
    `context_tokens` the prompt, own tokens and observations together."""

    environment: Environment
    tasks: Sequence[Task]
    turn_tokens: int
    context_tokens: int


class Domain(Protocol):
    """Everything that the stages know about the tasks. It is made from `TrainingOptions.environment`."""

    def open(self, checkpoint: Path, *, single_turn: bool) -> AbstractContextManager[OpenDomain]:
        """Opens the environment. `checkpoint` is a policy of this training, for its tokenizer. With `single_turn` an
        episode has one answer. Raises UsageError, StoreError and DeviceError."""
        ...

    def in_cluster(self) -> Domain:
        """Returns this domain for a process of a Ray cluster, which may judge elsewhere."""
        ...

    def base(self, directory: Path) -> Path:
        """Makes the base model: a folder in transformers' format inside `directory`. Raises CudaAgentError."""
        ...

    def evaluate(self, checkpoint: Path, directory: Path) -> dict[str, float]:
        """Plays the held-out tasks and returns flat numbers. Details go to `directory`."""
        ...
