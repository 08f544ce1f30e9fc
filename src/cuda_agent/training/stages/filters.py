"""Filters the episodes for rejection fine-tuning and counts why others were dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pydantic import Field

from cuda_agent.core.record import StoredRecord
from cuda_agent.training.config import RftOptions
from cuda_agent.training.episodes import Episode

#: reasons in the order of their checks. An episode counts under the first that holds.
REASONS = ("judge_failed", "reward", "violation", "invalid_call", "redundant_loop", "truncated")


class EpisodeFunnel(StoredRecord):
    """How many episodes were played and kept, and how many each reason dropped."""

    file_name = "funnel.json"
    played: int
    kept: int
    dropped: dict[str, int] = Field(default_factory=dict)


def reason_to_drop(episode: Episode, options: RftOptions) -> str | None:
    """Returns why an episode is dropped, or None (paper, "Training", step 3)."""
    if episode.reward is None:
        return "judge_failed"
    if episode.reward <= options.reward_above:
        return "reward"
    if episode.violations:
        return "violation"
    if episode.invalid_calls > options.max_invalid_calls:
        return "invalid_call"
    if episode.repeated_calls > options.max_repeated_calls:
        return "redundant_loop"
    if episode.truncated and not options.keep_truncated:
        return "truncated"
    return None


def keep(episodes: Sequence[Episode], options: RftOptions) -> tuple[list[Episode], EpisodeFunnel]:
    """Returns the episodes to learn from, in their order, and the counts."""
    kept: list[Episode] = []
    dropped: Counter[str] = Counter()
    for episode in episodes:
        reason = reason_to_drop(episode, options)
        if reason is None:
            kept.append(episode)
        else:
            dropped[reason] += 1
    ordered = {reason: dropped[reason] for reason in REASONS if dropped[reason]}
    return kept, EpisodeFunnel(played=len(episodes), kept=len(kept), dropped=ordered)
