"""Matrix products and convolutions on the CPU: planned, built, run, compared with float64."""

import pytest
import torch
from library_cases import CASES, HALF_CASES, exact, relative_error
from library_kernels import results_of_proposal

from cuda_agent.core.enums import Device

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_proposal_computes_the_module(name, dtype, tmp_path):
    truths = exact(*CASES[name](getattr(torch, dtype)))
    for index, (one, truth) in enumerate(
        zip(results_of_proposal(name, dtype, Device.CPU, tmp_path), truths, strict=True)
    ):
        assert one.shape == truth.shape and one.dtype == getattr(torch, dtype)
        assert relative_error(one, truth) < (2e-2 if dtype == "bfloat16" else 3e-6), index


@pytest.mark.parametrize("name", HALF_CASES)
def test_proposal_computes_a_module_of_half_precision(name, tmp_path):
    module, inputs = HALF_CASES[name](torch.bfloat16)
    found, *_ = results_of_proposal(name, "bfloat16", Device.CPU, tmp_path)
    assert found.dtype == torch.bfloat16
    assert relative_error(found, module.exact(*inputs).detach()) < 1e-2
