"""A fixed sample of the graphs that hypothesis draws; `benchmarks/graphs.py` tries as many as wanted."""

from __future__ import annotations

import pytest

from cuda_agent.core.enums import Device
from playbook_graphs import drawn, tried

pytestmark = pytest.mark.integration


def test_drawn_graphs_agree_with_eager() -> None:
    programs = drawn(0, 90)
    outcome = tried(programs, Device.CPU)
    assert not outcome.failed, "\n".join(outcome.failed)
    assert outcome.agreed > len(programs) // 2
