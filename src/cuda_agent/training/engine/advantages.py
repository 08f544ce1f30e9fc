"""Advantages and value targets by verl's estimator, and importance ratios.

    delta_t = r_t + gamma V_{t+1} - V_t,    A_t = delta_t + gamma lambda A_{t+1},    target_t = V_t + A_t

over the policy's own tokens only: t + 1 is the next own token, whatever was observed in between.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Advantages:
    """One row per episode over its response tokens; 0 where the mask is 0."""

    advantages: list[Tensor]
    targets: list[Tensor]
    #: 1 - Var(target - V) / Var(target) over own tokens; below 0, a constant would predict better.
    explained_variance: float


def estimate(
    rewards: Sequence[float],
    values: Sequence[Tensor],
    masks: Sequence[Tensor],
    *,
    gamma: float,
    lam: float,
    whiten: bool,
) -> Advantages:
    """Estimates advantages. `rewards[i]` is earned at the last token of episode i, which is an own token. `values[i]`
    and `masks[i]` have shape (tokens,).

    verl always whitens advantages. Without `whiten` they are computed as target - V, which equals the unwhitened ones.
    """
    from verl.trainer.ppo.core_algos import compute_gae_advantage_return

    mask = _pad(masks)
    value = _pad(values) * mask
    reward = torch.zeros_like(value)
    for row, (earned, own) in enumerate(zip(rewards, masks, strict=True)):
        reward[row, len(own) - 1] = earned
    whitened, target = compute_gae_advantage_return(reward, value, mask, gamma, lam)
    advantage = (whitened if whiten else target - value) * mask
    lengths = [len(own) for own in masks]
    return Advantages(
        [advantage[row, :length] for row, length in enumerate(lengths)],
        [(target * mask)[row, :length] for row, length in enumerate(lengths)],
        explained_variance(target[mask.bool()], value[mask.bool()]),
    )


def explained_variance(targets: Tensor, values: Tensor) -> float:
    """Returns the explained variance as verl reports it, or NaN for fewer than two tokens."""
    if targets.numel() < 2:
        return float("nan")
    return float(1.0 - (targets - values).var() / (targets.var() + 1e-5))


def _pad(rows: Sequence[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence([row.float() for row in rows], batch_first=True)


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
