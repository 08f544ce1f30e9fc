"""What an episode earns in training: the milestone reward that the judge's evaluation gave, or, as an ablation, the raw
speed-up (paper, "Reward")."""

from __future__ import annotations

from typing import Literal

from cuda_agent.training.episodes import Episode

FAILED = -1.0


def reward_of(episode: Episode, kind: Literal["milestone", "speedup"]) -> float | None:
    """None where the judge failed. `speedup`: the matched baseline's time over the best candidate's; -1 without one."""
    if episode.reward is None or kind == "milestone":
        return episode.reward
    return FAILED if episode.ratio is None or episode.reward <= FAILED else episode.ratio
