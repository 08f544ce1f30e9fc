"""Filters of rejection fine-tuning, and the metrics of episodes."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from cuda_agent.core.enums import Milestone
from cuda_agent.training.config import Fault, FaultRates, RftOptions
from cuda_agent.training.episodes import Episode, reward_of
from cuda_agent.training.metrics import of_episodes
from cuda_agent.training.stages.rft import keep, reason_to_drop

OPTIONS = RftOptions(batch=4, lr=1e-4)


def episode(**changes: Any) -> Episode:
    values: dict[str, Any] = {
        "task_key": "k", "task_name": "t", "prompt_ids": (1, 2), "response_ids": (3, 4, 5), "mask": (1, 0, 1),
        "log_probabilities": (-0.5, 0.0, -0.25), "reward": 2.0, "milestone": Milestone.FASTER_THAN_EAGER,
        "truncated": False, "turns": 2, "calls": 2, "ratio": 1.5,
    }  # fmt: skip
    return Episode.model_validate({**values, **changes})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"truncated": True}, None),
        ({"reward": None, "milestone": None}, "judge_failed"),
        ({"reward": -1.0, "milestone": Milestone.FAILED}, "reward"),
        ({"violations": ("torch_call",)}, "violation"),
        ({"faults": {"unknown_tool": 1}, "calls": 100}, "unknown_tool"),
        # one slip of another kind is forgiven, a share of them in long episodes
        ({"faults": {"unreadable": 1, "no_call": 1, "wrong_arguments": 1, "repeated_judging": 1}}, None),
        ({"faults": {"unreadable": 2}}, "unreadable"),
        ({"faults": {"repeated_reading": 30, "repeated_judging": 10}, "calls": 100}, None),
        ({"faults": {"repeated_reading": 30, "repeated_judging": 11}, "calls": 100}, "repeated_judging"),
        ({"faults": {"no_call": 3}, "calls": 0, "turns": 30}, None),
        ({"faults": {"no_call": 4}, "calls": 0, "turns": 30}, "no_call"),
        # the first that holds is the one that is told
        ({"reward": -1.0, "milestone": Milestone.FAILED, "faults": {"unknown_tool": 1}}, "reward"),
    ],
)
def test_reasons(changes: dict[str, Any], reason: str | None) -> None:
    assert reason_to_drop(episode(**changes), OPTIONS) == reason


def test_the_funnel_adds_up() -> None:
    played = [
        episode(),
        episode(faults={"unknown_tool": 2}),
        episode(),
        episode(reward=-1.0, milestone=Milestone.FAILED),
    ]
    kept, funnel = keep(played, OPTIONS)
    assert kept == [played[0], played[2]]
    assert (funnel.played, funnel.kept, funnel.dropped) == (4, 2, {"reward": 1, "unknown_tool": 1})


def test_limits_of_the_filters_are_settings() -> None:
    rates = FaultRates(no_call=0.0, unknown_tool=1.0)
    loose = RftOptions(batch=4, lr=1e-4, fault_rates=rates, keep_truncated=False)
    assert reason_to_drop(episode(faults={"unknown_tool": 2}), loose) is None
    assert reason_to_drop(episode(faults={"no_call": 1}), loose) == "no_call"
    assert set(FaultRates.model_fields) == set(get_args(Fault))
    assert reason_to_drop(episode(truncated=True), loose) == "truncated"


def test_raw_speed_up_as_the_reward() -> None:
    failed = episode(reward=-1.0, milestone=Milestone.FAILED, ratio=None)
    assert (reward_of(episode(), "speedup"), reward_of(failed, "speedup")) == (1.5, -1.0)
    assert reward_of(episode(reward=None, milestone=None), "speedup") is None
    assert reward_of(episode(), "milestone") == 2.0


def test_metrics_of_episodes() -> None:
    played = [episode(), episode(reward=-1.0, milestone=Milestone.FAILED, ratio=None, invalid_calls=1)]
    told = of_episodes([*played, episode(reward=None, milestone=None)])
    assert told["reward"] == 0.5 and told["judge_failed"] == pytest.approx(1 / 3)
    assert told["pass_rate"] == pytest.approx(1 / 3) and told["share_failed"] == 0.5
    assert told["invalid_call_rate"] == pytest.approx(1 / 6)
    assert all(isinstance(value, float) for value in told.values())
