"""Protective stops: what trips each of them, and what doesn't."""

from __future__ import annotations

import pytest

from cuda_agent.training.config import ProtectOptions
from cuda_agent.training.protect import reason_to_stop

OPTIONS = ProtectOptions()


def lines(**series: list[float]) -> list[dict[str, float]]:
    length = len(next(iter(series.values())))
    return [{name: values[step] for name, values in series.items()} for step in range(length)]


@pytest.mark.parametrize(
    ("series", "word"),
    [
        ({"ratio_max": [1.0, 2e4]}, "ratio exploded"),
        ({"ratio_min": [1.0, 1e-5]}, "ratio exploded"),
        ({"entropy": [0.5, 2.0, 2.0, 2.0]}, "entropy exploded"),
        ({"explained_variance": [0.1, -1.5, -1.2, -4.0]}, "worse than a constant"),
        ({"reward": [1, 2, 3, 2, 0, -1, -1]}, "reward collapsed"),
    ],
)
def test_what_halts(series: dict[str, list[float]], word: str) -> None:
    reason = reason_to_stop(lines(**series), OPTIONS)
    assert reason is not None and word in reason and "protect." in reason


@pytest.mark.parametrize(
    "series",
    [
        {"ratio_max": [2e4, 1.0]},
        # above the factor but below the floor; and not for long enough
        {"entropy": [0.1, 0.9, 0.9, 0.9]},
        {"entropy": [0.5, 2.0, 0.6, 2.0]},
        {"explained_variance": [-9.0, -9.0, 0.1]},
        {"reward": [3, -1, 3, -1, 3, -1, 3]},
        {"reward": [3, -1, -1]},
    ],
)
def test_what_does_not(series: dict[str, list[float]]) -> None:
    assert reason_to_stop(lines(**series), OPTIONS) is None


def test_every_stop_can_be_switched_off() -> None:
    off = ProtectOptions(entropy_factor=None, ratio=None, explained_variance=None, reward_drop=None)
    bad = lines(ratio_max=[1e9] * 8, entropy=[9.0] * 8, explained_variance=[-9.0] * 8, reward=[3.0] * 4 + [-1.0] * 4)
    assert reason_to_stop(bad, off) is None
