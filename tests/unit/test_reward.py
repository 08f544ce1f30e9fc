"""The reward at its boundaries: a milestone counts when the lower end of the interval passes 5 %."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import builders
from cuda_agent.core.enums import Milestone, Phase, RewardBaseline, Signal, Verdict
from cuda_agent.core.records import Ratio
from cuda_agent.reward import is_faster, reward

AT = 1.0 / 0.95  # 5 % less time, exactly: not more than 5 %
ABOVE = math.nextafter(AT, 2.0)


@pytest.mark.parametrize(
    ("eager", "compiled", "value", "milestone"),
    [
        (2.0, 2.0, 3, Milestone.FASTER_THAN_BOTH),
        (ABOVE, ABOVE, 3, Milestone.FASTER_THAN_BOTH),
        (ABOVE, AT, 2, Milestone.FASTER_THAN_EAGER),
        (2.0, 0.5, 2, Milestone.FASTER_THAN_EAGER),
        (AT, ABOVE, 1, Milestone.CORRECT),
        (AT, AT, 1, Milestone.CORRECT),
        (0.5, 2.0, 1, Milestone.CORRECT),
        (0.1, 0.1, 1, Milestone.CORRECT),
    ],
)
def test_milestones_at_the_boundary(eager: float, compiled: float, value: int, milestone: Milestone) -> None:
    evaluation = builders.evaluation(profile=builders.profile({"eager": eager, "compile": compiled}))
    got = reward(evaluation)
    assert (got.value, got.milestone, got.baseline) == (value, milestone, RewardBaseline.PUBLISHED)


def test_a_constant_answer_is_never_paid() -> None:
    profile = builders.profile({"eager": 9.0, "compile": 9.0})
    got = reward(builders.evaluation(profile=profile, signal=Signal.NONE))
    assert (got.value, got.milestone) == (-1, Milestone.FAILED) and "constant" in got.reason
    assert reward(builders.evaluation(profile=profile, signal=Signal.SCALED)).value == 3


def test_the_interval_counts_and_not_the_median() -> None:
    assert not is_faster(Ratio(baseline="eager", value=1.2, low=1.05, high=1.4))
    assert is_faster(Ratio(baseline="eager", value=1.06, low=1.0527, high=1.07))
    assert not is_faster(None)


@pytest.mark.parametrize(
    ("ratios", "published", "matched"),
    [
        ({"eager": 2.0, "compile": 1.5, "graphs_tf32": 1.0}, 3, 2),
        ({"eager": 2.0, "compile": 1.0, "graphs_tf32": 1.5}, 2, 3),
        ({"eager": 2.0, "graphs_tf32": 1.5}, 2, 3),
        ({"eager": 2.0, "compile": 1.5}, 3, 2),
        ({"compile": 2.0, "graphs_tf32": 2.0}, 1, 1),
    ],
)
def test_which_baseline_pays(ratios: dict[str, float], published: int, matched: int) -> None:
    evaluation = builders.evaluation(profile=builders.profile(ratios, matched="graphs_tf32"))
    assert reward(evaluation, RewardBaseline.PUBLISHED).value == published
    assert reward(evaluation, RewardBaseline.MATCHED).value == matched


@pytest.mark.parametrize("verdict", [verdict for verdict in Verdict if verdict is not Verdict.PASSED])
def test_every_failure_costs_one(verdict: Verdict) -> None:
    failed = builders.evaluation(verdict=verdict, phase=Phase.VERIFY, profile=None, verify=None, reason="because")
    got = reward(failed)
    assert (got.value, got.milestone, got.reason) == (-1, Milestone.FAILED, "because")


@given(st.floats(0.01, 100), st.floats(0.01, 100), st.floats(0.01, 100))
def test_faster_is_never_worse(eager: float, compiled: float, more: float) -> None:
    def value(a: float, b: float) -> int:
        return reward(builders.evaluation(profile=builders.profile({"eager": a, "compile": b}))).value

    assert value(eager + more, compiled) >= value(eager, compiled)
    assert value(eager, compiled + more) >= value(eager, compiled)
