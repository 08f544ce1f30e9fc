"""Composes every stage of a training with verl before anything runs."""

from __future__ import annotations

import os

from cuda_agent.training.config import PpoOptions, TrainingOptions
from cuda_agent.training.engine import platform
from cuda_agent.training.engine.compose import compose, embedded
from cuda_agent.training.ray.overrides import ray_overrides


def check(options: TrainingOptions) -> None:
    """Composes every stage with verl, with placeholders for models that don't exist yet. Raises UsageError and
    DeviceError."""
    platform.prepare(options.device)
    for stage in (options.warmup, options.rft, options.value, options.ppo):
        if stage is None:
            continue
        if options.launcher == "ray" and isinstance(stage, PpoOptions):
            compose(ray_overrides(options, stage, "actor", "critic", os.curdir))
        compose(embedded(options.model, "actor", "critic", stage))
