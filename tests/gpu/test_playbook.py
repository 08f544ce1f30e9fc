"""Every kind of generated CUDA kernel, in every setting, against torch on the GPU."""

from __future__ import annotations

import pytest
import torch

from cuda_agent.core.enums import Device
from playbook_cases import FOLDED, POINTWISE, REDUCTIONS, RESAMPLED, SCANS, WINDOWS
from playbook_harness import check

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]


@pytest.mark.parametrize("name", [*POINTWISE, *REDUCTIONS, *WINDOWS, *RESAMPLED, *FOLDED, *SCANS])
def test_kernels_agree_with_torch(name: str) -> None:
    function, inputs = {**POINTWISE, **REDUCTIONS, **WINDOWS, **RESAMPLED, **FOLDED, **SCANS}[name]
    check(function, inputs, Device.CUDA, every_setting=True)


@pytest.mark.parametrize("name", list(WINDOWS))
def test_windows_that_are_written_out_agree_with_torch(name: str) -> None:
    function, inputs = WINDOWS[name]
    check(function, inputs, Device.CUDA, every_setting=True, written_out=True)
