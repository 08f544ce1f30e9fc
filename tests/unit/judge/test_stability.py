"""What A/A samples say, on samples whose truth is known."""

from __future__ import annotations

import pytest

from cuda_agent.core.enums import Device
from cuda_agent.judge.stability import KERNELS, Sample, spread, summarize


def sample(ratio: float, half: float = 0.01) -> Sample:
    return Sample("k", ratio, ratio - half, ratio + half, latency_us=100 * ratio, rounds=13, seconds=1.0)


def test_summary() -> None:
    samples = [sample(1.0), sample(1.03), sample(0.99), Sample("k", None, void="a neighbour"), sample(1.005)]
    found = summarize(samples)
    assert (found.evaluations, found.void, found.coverage) == (5, 1, 0.75)
    assert found.worst == pytest.approx(0.03) and found.median == pytest.approx(1.0025)
    assert found.spread == pytest.approx(0.04 / 1.0025) and found.half_width == pytest.approx(0.01, rel=0.01)
    nothing = summarize([Sample("k", None, void="a neighbour")])
    assert nothing.median is None and nothing.coverage is None and spread([1.0]) is None


@pytest.mark.parametrize("device", list(Device))
def test_programs_are_tasks(device: Device) -> None:
    for kernel in KERNELS[device]:
        task = kernel.task()
        compile(task.source, task.name, "exec")
        assert task.name.isidentifier()
