"""The CUDA specimens are valid CUDA: what fails on a GPU fails for the reason it declares. Needs nvcc, no GPU."""

from __future__ import annotations

import pytest
from specimen import Specimen, options, specimens

from compiled_only import compile_only
from cuda_agent.core.enums import Device
from cuda_agent.core.stack import find_nvcc

pytestmark = [pytest.mark.adversarial, pytest.mark.skipif(find_nvcc() is None, reason="no nvcc")]
CUDA = [item for item in specimens() if item.device is Device.CUDA]


@pytest.mark.parametrize("specimen", [pytest.param(item, id=item.id) for item in CUDA])
def test_sources_compile(specimen: Specimen) -> None:
    outcomes = compile_only(specimen.candidate, device=Device.CUDA, options=options(Device.CUDA), arch="9.0")
    faults = {name: f"{outcome.fault}\n{outcome.log[-1500:]}" for name, outcome in outcomes.items() if outcome.fault}
    if any("cublas_v2.h: No such file" in fault for fault in faults.values()):
        pytest.skip("cuBLAS's headers are missing here")
    assert not faults
