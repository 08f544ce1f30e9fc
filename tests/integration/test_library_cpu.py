"""Matrix products and convolutions on the CPU: planned, built, run, compared with float64."""

import pytest
import torch
from library_cases import CASES, exact, relative_error
from library_kernels import load_proposal

from cuda_agent.core.enums import Device, Precision

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_proposal_computes_the_module(name, dtype):
    module, inputs = CASES[name](dtype)
    proposal, model = load_proposal(module, inputs, Device.CPU, Precision.FP32)
    assert {"gemm", "convolution"} & set(proposal.skills)
    with torch.no_grad():
        found = model(*inputs)
    found = list(found) if isinstance(found, tuple) else [found]
    for index, (one, truth) in enumerate(zip(found, exact(module, inputs), strict=True)):
        assert one.shape == truth.shape and one.dtype == dtype
        assert relative_error(one, truth) < (2e-2 if dtype == torch.bfloat16 else 3e-6), index
