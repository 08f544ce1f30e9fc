"""Halts a stage. It stays halted until the user removes the record."""

from __future__ import annotations

from cuda_agent.training.protect import TrainingHalted
from cuda_agent.training.stages.records import Halt
from cuda_agent.training.stages.stage import TrainingStage


def halt(stage: TrainingStage, step: int, reason: str, policy: str | None) -> TrainingHalted:
    """Writes the reason and returns the error to raise. `policy` is the last good one, relative to the run's folder."""
    record = Halt(reason=reason, step=step, policy=policy)
    record.write(stage.directory)
    return _said(stage, record)


def check_not_halted(stage: TrainingStage) -> None:
    """Raises TrainingHalted if the stage was halted."""
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
