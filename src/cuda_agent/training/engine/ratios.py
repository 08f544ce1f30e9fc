"""Importance ratios of own tokens: their extremes, and the fault that an ablation injects."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def log_ratios(name: str, now: Sequence[Tensor], old: Sequence[Tensor], masks: Sequence[Tensor]) -> dict[str, float]:
    """Returns the smallest and largest ratio exp(now - old) over own tokens, and the mean absolute log ratio."""
    own = torch.cat([*masks]).bool()
    difference = (torch.cat([*now]) - torch.cat([*old]))[own]
    return {
        f"{name}_min": float(difference.min().exp()),
        f"{name}_max": float(difference.max().exp()),
        f"{name}_mean_abs_log": float(difference.abs().mean()),
    }


def mismatched(trainer: Sequence[Tensor], sampler: Sequence[Tensor], below: float) -> list[Tensor]:
    """Returns the trainer's log-probabilities, but the sampler's for tokens drawn with a probability below `below`."""
    return [torch.where(drawn.exp() < below, drawn, trained) for trained, drawn in zip(trainer, sampler, strict=True)]
