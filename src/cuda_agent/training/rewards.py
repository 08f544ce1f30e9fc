"""The reward of an episode in training: the milestone reward of the judge's evaluation, or, as an ablation, the raw
speed-up (paper, "Reward")."""

from __future__ import annotations

from typing import Literal

from cuda_agent.training.episodes import Episode

FAILED = -1.0


def reward_of(episode: Episode, kind: Literal["milestone", "speedup"]) -> float | None:
    """Returns the reward, None if the judge failed. `speedup` is the matched baseline's time / the best candidate's, or
    -1 without a candidate."""
    if episode.reward is None or kind == "milestone":
        return episode.reward
    return FAILED if episode.ratio is None or episode.reward <= FAILED else episode.ratio
