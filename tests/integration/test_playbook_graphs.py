"""A fixed sample of the graphs that hypothesis draws; `benchmarks/graphs.py` tries as many as wanted."""

from __future__ import annotations

import pytest
import torch

from cuda_agent.core.enums import Device
from playbook_graphs import Input, Program, Step, drawn, tried

pytestmark = pytest.mark.integration


def test_drawn_graphs_agree_with_eager() -> None:
    programs = drawn(0, 90)
    outcome = tried(programs, Device.CPU)
    assert not outcome.failed, "\n".join(outcome.failed)
    assert outcome.agreed > len(programs) // 2


def test_the_mean_of_equal_values_is_that_value() -> None:
    """With a factor of 1 / 7 it would be off by its rounding, which a norm multiplies by 300."""
    same = Step("isfinite", (0,), ())
    norm, mean = [Step("norm rows", (1,), (-1,))], [Step("max pool", (1,), (3,)), Step("mean", (2,), (0, False))]
    programs = [Program((Input((7, 7), (0, 1), torch.float32, 1),), (same, *steps)) for steps in (norm, mean)]
    outcome = tried(programs, Device.CPU)
    assert outcome.agreed == len(programs), outcome
