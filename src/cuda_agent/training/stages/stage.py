"""What every stage receives and returns, and the domain in which it plays."""

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cuda_agent.core.records import Task
from cuda_agent.training.config import EpisodeLimits, TrainingOptions
from cuda_agent.training.episodes import Environment
from cuda_agent.training.metrics import MetricsLog
from cuda_agent.training.protect import TrainingHalted, reason_to_stop
from cuda_agent.training.stages.records import Halt

#: progress(phase, text) shows one line to the user.
Progress = Callable[[str, str], None]
#: the numbers of a step that are shown.
_SAID = ("reward", "pass_rate", "entropy", "explained_variance", "wall_s")


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

    def open(self, checkpoint: Path, limits: EpisodeLimits) -> AbstractContextManager[OpenDomain]:
        """Opens the environment. `checkpoint` is a policy of this training, for its tokenizer and dialogue. Raises
        UsageError, StoreError and DeviceError."""
        ...

    def in_cluster(self) -> "Domain":
        """Returns this domain for a process of a Ray cluster, which may judge elsewhere."""
        ...

    def base(self, directory: Path) -> Path:
        """Makes the base model: a folder in transformers' format inside `directory`. Raises CudaAgentError."""
        ...

    def evaluate(self, checkpoint: Path, directory: Path) -> dict[str, float]:
        """Plays the held-out tasks and returns flat numbers. Details go to `directory`."""
        ...


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

    def limits(self, limits: EpisodeLimits) -> EpisodeLimits:
        """Returns the limits to play with: single turns in the warm-up and without the agent loop."""
        return limits if self.options.agent_loop and self.name != "warmup" else limits.single()

    def seed(self, step: int) -> int:
        """Returns the seed of a step, which is the same after a resumption."""
        return random.Random(f"{self.options.seed}/{self.name}/{step}").getrandbits(31)

    def log(self, metrics: MetricsLog, step: int, steps: int, numbers: dict[str, float], saved: str | None) -> None:
        """Logs a step. A protective stop halts the stage until the user removes the record, and raises TrainingHalted.
        `saved` is the last good policy, relative to the run's folder."""
        metrics.add(step, numbers)
        said = ", ".join(f"{name} {numbers[name]:.3g}" for name in _SAID if name in numbers)
        self.progress(self.name, f"step {step}/{steps}: {said}")
        reason = reason_to_stop(metrics.lines, self.options.protect)
        if reason is not None:
            record = Halt(reason=reason, step=step, policy=saved)
            record.write(self.directory)
            raise self._halted(record)

    def check_not_halted(self) -> None:
        """Raises TrainingHalted if the stage was halted."""
        record = Halt.find(self.directory)
        if record is not None:
            raise self._halted(record)

    def _halted(self, record: Halt) -> TrainingHalted:
        kept = f"Last good checkpoint: {self.run / record.policy}" if record.policy else "No step was saved before it"
        path = self.directory / Halt.file_name
        return TrainingHalted(
            f"{self.name} halted at step {record.step}: {record.reason}",
            f"{kept}. To go on from there all the same, change the protect settings and remove {path}",
        )


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
