from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from cuda_agent.core.enums import Milestone
from cuda_agent.core.lines import append
from cuda_agent.training.episodes import Episode, read_episodes

GOOD: dict[str, Any] = {
    "task_key": "k", "task_name": "t", "prompt_ids": (1, 2), "response_ids": (3, 4, 5), "mask": (1, 0, 1),
    "log_probabilities": (-0.1, 0.0, -0.2), "reward": 1.0, "milestone": Milestone.CORRECT, "truncated": False,
    "turns": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mask": (1, 1, 0), "log_probabilities": (-0.1, -0.1, 0.0)}, "ends with an own token"),
        ({"mask": (1, 2, 1)}, "0 or 1"),
        ({"mask": (1, 1)}, "one entry a token"),
        ({"log_probabilities": (-0.1, -0.1, -0.2)}, "no log-probability"),
        ({"milestone": None}, "comes with its milestone"),
        ({"response_ids": (), "mask": (), "log_probabilities": ()}, "at least 1"),
    ],
)
def test_impossible_episodes_cannot_be_built(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Episode(**{**GOOD, **changes})


def test_episodes_outlive_a_kill(tmp_path: Path) -> None:
    path, one = tmp_path / "e.jsonl", Episode(**GOOD)
    append(path, [one])
    path.write_bytes(path.read_bytes() + b'{"half')
    assert read_episodes(path) == [one]
    append(path, [one])
    assert read_episodes(path) == [one, one] and one.input_ids == (1, 2, 3, 4, 5) and one.own_tokens == 2
    assert read_episodes(tmp_path / "none") == []


@pytest.mark.parametrize(("tokens", "left"), [(9, 5), (5, 5), (4, 2), (3, 2), (2, 2), (1, 1)])
def test_a_cut_episode_ends_with_an_own_token(tokens: int, left: int) -> None:
    """Own tokens at 0, 1 and 4, observations between them: the reward never lies on one."""
    rows = {"response_ids": (3, 4, 5, 6, 7), "mask": (1, 1, 0, 0, 1), "log_probabilities": (-0.1, -0.2, 0.0, 0.0, -0.3)}
    whole = Episode(**{**GOOD, **rows})
    found = whole.cut(tokens)
    assert found.mask[-1] == 1 and len(found.response_ids) == len(found.log_probabilities) == left
    assert found.truncated == (left < 5) and found.response_ids == whole.response_ids[:left]
    assert Episode(**found.model_dump(exclude={"schema_version"})).own_tokens == sum(found.mask)
