"""Matrix products and convolutions on the CPU: planned, built, run, compared with float64."""

import pytest
import torch
from library_cases import CASES, exact, relative_error
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
