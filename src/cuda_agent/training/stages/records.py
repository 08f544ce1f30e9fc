"""What a training leaves besides models: the manifest that chains its stages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import Field

from cuda_agent.core.record import Record, StoredRecord
from cuda_agent.core.stack import Stack

#: in the order in which they run.
STAGES = ("base", "warmup", "sample", "rft", "value", "ppo")


class StageEnd(Record):
    """A finished stage. `policy` and `critic` are the folders that it left, relative to the run's."""

    stage: str
    ended: str
    wall_s: float
    steps: int = 0
    policy: str | None = None
    critic: str | None = None
    #: held-out numbers after it, and what else is worth saying of it.
    numbers: dict[str, float] = Field(default_factory=dict)


class TrainingManifest(StoredRecord):
    """What is needed to run it again, and how far it came. `commit` None: installed, not a checkout."""

    file_name = "training.json"
    command: tuple[str, ...]
    configuration: dict[str, Any]
    version: str
    commit: str | None
    stack: Stack
    started: str
    stages: tuple[StageEnd, ...] = ()
    #: when it was taken up again, and what had changed.
    resumed: tuple[str, ...] = ()

    def ended(self, stage: str) -> StageEnd | None:
        return next((one for one in self.stages if one.stage == stage), None)

    def latest(self, kind: str, before: str) -> str | None:
        """The last `policy` or `critic` that a stage before this one left."""
        known = {one.stage: getattr(one, kind) for one in self.stages}
        earlier = STAGES[: STAGES.index(before)]
        found = [known[name] for name in earlier if known.get(name) is not None]
        return found[-1] if found else None


class Position(StoredRecord):
    """The next step of a stage that was left, and the folder of the engines' state at it."""

    file_name = "position.json"
    next_step: int
    state: str | None = None


class Halt(StoredRecord):
    """A protective stop: why, after which step, and the last good checkpoint."""

    file_name = "halted.json"
    reason: str
    step: int
    policy: str | None


def differences(before: dict[str, Any], after: dict[str, Any], prefix: str = "") -> list[str]:
    """Dotted names of settings that differ."""
    found = []
    for key in dict.fromkeys((*before, *after)):
        old, new = before.get(key), after.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            found += differences(old, new, f"{prefix}{key}.")
        elif json.dumps(old, sort_keys=True) != json.dumps(new, sort_keys=True):
            found.append(prefix + key)
    return found


def read_position(directory: Path) -> Position:
    """Where a stage goes on; its start where it has left nothing."""
    known = (directory / Position.file_name).exists()
    return Position.read(directory) if known else Position(next_step=1)
