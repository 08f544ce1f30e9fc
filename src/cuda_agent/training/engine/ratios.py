"""Importance ratios of own tokens, told by their extremes, and the fault that an ablation injects into them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def log_ratios(name: str, now: Sequence[Tensor], old: Sequence[Tensor], masks: Sequence[Tensor]) -> dict[str, float]:
    """Smallest, largest and mean absolute log ratio, exp(now - old), over own tokens."""
    own = torch.cat([*masks]).bool()
    difference = (torch.cat([*now]) - torch.cat([*old]))[own]
    return {
        f"{name}_min": float(difference.min().exp()),
        f"{name}_max": float(difference.max().exp()),
        f"{name}_mean_abs_log": float(difference.abs().mean()),
    }


def mismatched(trainer: Sequence[Tensor], sampler: Sequence[Tensor], below: float) -> list[Tensor]:
    """The trainer's log-probabilities; the sampler's for tokens that it drew with a probability below `below`."""
    return [torch.where(drawn.exp() < below, drawn, trained) for trained, drawn in zip(trainer, sampler, strict=True)]
