"""Generated C++ kernels against torch: every operator family, awkward shapes, both store settings."""

from __future__ import annotations

import pytest

from cuda_agent.core.enums import Device
from playbook_cases import FOLDED, POINTWISE, REDUCTIONS, RESAMPLED, SCANS, WINDOWS
from playbook_harness import check

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("name", [*POINTWISE, *REDUCTIONS, *WINDOWS, *RESAMPLED, *FOLDED, *SCANS])
def test_kernels_agree_with_torch(name: str) -> None:
    function, inputs = {**POINTWISE, **REDUCTIONS, **WINDOWS, **RESAMPLED, **FOLDED, **SCANS}[name]
    check(function, inputs, Device.CPU, every_setting=True)


@pytest.mark.parametrize(
    "name", ["max_pool_nan", "avg_pool_ceil", "both_pools", "pool_of_softmax", "depthwise_odd", "sum_of_avg_pool"]
)
def test_windows_that_are_written_out_agree_with_torch(name: str) -> None:
    function, inputs = WINDOWS[name]
    check(function, inputs, Device.CPU, written_out=True)
