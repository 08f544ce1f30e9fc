"""A stage that was halted stays so until somebody has looked at it."""

from __future__ import annotations

from cuda_agent.training.protect import TrainingHalted
from cuda_agent.training.stages.records import Halt
from cuda_agent.training.stages.stage import TrainingStage


def halt(stage: TrainingStage, step: int, reason: str, policy: str | None) -> TrainingHalted:
    """Writes why, and returns what is to be raised. `policy`: the last good one, relative to the run's folder."""
    record = Halt(reason=reason, step=step, policy=policy)
    record.write(stage.directory)
    return _said(stage, record)


def check_not_halted(stage: TrainingStage) -> None:
    """Raises TrainingHalted."""
    if (stage.directory / Halt.file_name).exists():
        raise _said(stage, Halt.read(stage.directory))


def _said(stage: TrainingStage, record: Halt) -> TrainingHalted:
    path = stage.directory / Halt.file_name
    good = stage.run / record.policy if record.policy is not None else None
    kept = f"Last good checkpoint: {good}" if good is not None else "No step was saved before it"
    return TrainingHalted(
        f"{stage.name} halted at step {record.step}: {record.reason}",
        f"{kept}. To go on from there all the same, change the protect settings and remove {path}",
    )
