"""benchmarks/noise.py: the share of intervals that hold 1, over restarts."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path

from cuda_agent.judge.stability import Sample

SPEC = importlib.util.spec_from_file_location("noise", Path(__file__).parents[3] / "benchmarks" / "noise.py")


def sample(ratio: float) -> Sample:
    return Sample("k", ratio, ratio - 0.01, ratio + 0.01)


def test_restarts_are_what_is_sampled() -> None:
    assert SPEC is not None and SPEC.loader is not None
    noise = importlib.util.module_from_spec(SPEC)
    SPEC.loader.exec_module(noise)
    rng = random.Random(1)
    fair = [sample(1 + rng.gauss(0, 0.01)) for _ in range(50)]
    biased = [sample(1.01 + rng.gauss(0, 0.001)) for _ in range(50)]
    assert (noise.coverage_over_restarts(fair) or 0.0) > 0.9
    assert noise.coverage_over_restarts(biased) == 0.0, "each interval holds 1, but they all lie on one side"
    assert noise.coverage_over_restarts(fair[:5]) is None
