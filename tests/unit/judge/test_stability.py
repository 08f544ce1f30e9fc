"""What A/A samples say, on samples whose truth is known."""

from __future__ import annotations

import random

import pytest

from cuda_agent.core.enums import Device
from cuda_agent.judge.stability import KERNELS, Sample, coverage_over_restarts, spread, summarize


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


def test_restarts_are_what_is_sampled() -> None:
    rng = random.Random(1)
    fair = [sample(1 + rng.gauss(0, 0.01)) for _ in range(50)]
    biased = [sample(1.01 + rng.gauss(0, 0.001)) for _ in range(50)]
    assert (coverage_over_restarts(fair) or 0.0) > 0.9
    assert coverage_over_restarts(biased) == 0.0, "each interval holds 1, but they all lie on one side"
    assert coverage_over_restarts(fair[:5]) is None


@pytest.mark.parametrize("device", list(Device))
def test_programs_are_tasks(device: Device) -> None:
    for kernel in KERNELS[device]:
        task = kernel.task()
        compile(task.source, task.name, "exec")
        assert task.name.isidentifier()
