"""An unknown key or an impossible value ends in one line that names it."""

from __future__ import annotations

from typing import Any

import pytest

from cuda_agent.core.config import JudgeOptions, OptimizeOptions
from cuda_agent.core.enums import Device
from cuda_agent.core.errors import UsageError


def test_known_settings() -> None:
    options = JudgeOptions.parse({"device": "cpu", "trials": 3})
    assert (options.device, options.trials, options.reward_baseline) == (Device.CPU, 3, "published")


def test_unknown_key_suggests_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"Unknown setting 'trails'\. Did you mean 'trials'"):
        JudgeOptions.parse({"device": "cpu", "trails": 3})


def test_unknown_key_without_a_near_one_lists_all() -> None:
    with pytest.raises(UsageError, match="Known: device, precision"):
        JudgeOptions.parse({"zzzzzz": 3})


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({}, "device"),
        ({"device": "tpu"}, "device"),
        ({"device": "cpu", "trials": 0}, "trials"),
        ({"device": "cpu", "precision": "fp8"}, "precision"),
        ({"device": "cpu", "timing_budget_s": -1}, "timing_budget_s"),
    ],
)
def test_impossible_value_names_the_setting(values: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=f"Setting {named}: ") as caught:
        JudgeOptions.parse(values)
    assert caught.value.exit_code == 2


def test_nested_value_is_named_by_its_path() -> None:
    with pytest.raises(UsageError, match=r"Setting judge\.device: "):
        OptimizeOptions.parse({"judge": {"device": "abacus"}})
