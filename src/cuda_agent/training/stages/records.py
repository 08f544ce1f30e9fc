"""Records of a training besides its models: the manifest that chains the stages."""

from pathlib import Path
from typing import Any

from pydantic import Field

from cuda_agent.core.record import Record, StoredRecord
from cuda_agent.core.stack import Stack

#: the stages in their order.
STAGES = ("base", "warmup", "sample", "rft", "value", "ppo")


class StageEnd(Record):
    """A finished stage. `policy` and `critic` are its folders, relative to the run's."""

    stage: str
    ended: str
    wall_s: float
    steps: int = 0
    policy: str | None = None
    critic: str | None = None
    #: held-out numbers after it, and further ones.
    numbers: dict[str, float] = Field(default_factory=dict)


class TrainingManifest(StoredRecord):
    """What is needed to run the training again, and its finished stages. `commit` is None for an installed package."""

    file_name = "training.json"
    command: tuple[str, ...]
    configuration: dict[str, Any]
    version: str
    commit: str | None
    stack: Stack
    started: str
    stages: tuple[StageEnd, ...] = ()
    #: when it was resumed, and what had changed.
    resumed: tuple[str, ...] = ()

    def ended(self, stage: str) -> StageEnd | None:
        return next((one for one in self.stages if one.stage == stage), None)

    def latest(self, kind: str, before: str) -> str | None:
        """Returns the last `policy` or `critic` of the stages before this one."""
        known = {one.stage: getattr(one, kind) for one in self.stages}
        earlier = STAGES[: STAGES.index(before)]
        found = [known[name] for name in earlier if known.get(name) is not None]
        return found[-1] if found else None


class Position(StoredRecord):
    """The next step of an interrupted stage, and the folder of the engines' state."""

    file_name = "position.json"
    next_step: int
    state: str | None = None


class Halt(StoredRecord):
    """A protective stop: why, after which step, and the last good checkpoint."""

    file_name = "halted.json"
    reason: str
    step: int
    policy: str | None


def read_position(directory: Path) -> Position:
    """Returns where a stage continues; its start if it left nothing."""
    return Position.find(directory) or Position(next_step=1)
