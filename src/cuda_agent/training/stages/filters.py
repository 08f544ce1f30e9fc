"""Which episodes rejection fine-tuning learns from, and why each other one was dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pydantic import Field

from cuda_agent.core.record import StoredRecord
from cuda_agent.training.config import RftOptions
from cuda_agent.training.episodes import Episode

#: in the order in which they are looked at; an episode is counted under the first that holds.
REASONS = ("judge_failed", "reward", "violation", "invalid_call", "redundant_loop", "truncated")


class EpisodeFunnel(StoredRecord):
    """How many episodes there were, how many are left, and what dropped the others."""

    file_name = "funnel.json"
    played: int
    kept: int
    dropped: dict[str, int] = Field(default_factory=dict)


def reason_to_drop(episode: Episode, options: RftOptions) -> str | None:
    """None: it is kept (paper, "Training", step 3)."""
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
    """The episodes to learn from, in their order, and what became of the others."""
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
