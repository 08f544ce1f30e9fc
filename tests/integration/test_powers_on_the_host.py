"""Powers as CUDA kernels compute them, by the host's compiler, with its logarithm and exponential as far off as the
device's may be."""

from __future__ import annotations

import ctypes
import math
import re
import subprocess
from pathlib import Path

import pytest
import torch

from cuda_agent.playbook.codegen import environment

pytestmark = pytest.mark.integration

#: what stands for the device's functions; `off` scales their errors.
HOST = """
#include <cmath>
#include <cstring>
#define __device__
#define __forceinline__ inline
static float off;
static int bits_of(float x) { int i; memcpy(&i, &x, 4); return i; }
static float of_bits(int i) { float x; memcpy(&x, &i, 4); return x; }
static float product(float x, float y) { volatile float z = x * y; return z; }
static float logarithm(float x) { return float(log2(double(x)) + off * 0x1p-22); }
static float exponential(float x) { return float(exp2(double(x)) * (1 + off * 0x1.5p-23)); }
FUNCTION
extern "C" void run(const float* x, const float* y, float* z, long count, float error) {
  off = error;
  for (long i = 0; i < count; ++i) z[i] = f_pow(x[i], y[i]);
}
"""
NAMES = {"__float_as_int": "bits_of", "__int_as_float": "of_bits", "__fmul_rn": "product", "__log2f": "logarithm",
         "exp2f": "exponential"}  # fmt: skip


@pytest.fixture(scope="module")
def power(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    header = environment().get_template("skills/shared/elementwise.cuh").render()
    found = re.search(r"^__device__ __forceinline__ float f_pow\(float x.*?^}\n", header, re.MULTILINE | re.DOTALL)
    assert found is not None
    text = found[0]
    for name, ours in NAMES.items():
        text = text.replace(name, ours)
    folder: Path = tmp_path_factory.mktemp("power")
    (folder / "x.cpp").write_text(HOST.replace("FUNCTION", text))
    command = ["g++", "-O2", "-ffp-contract=off", "-shared", "-fPIC", f"{folder}/x.cpp", "-o", f"{folder}/x.so"]
    subprocess.run(command, check=True)
    return ctypes.CDLL(f"{folder}/x.so")


def powers(library: ctypes.CDLL, x: torch.Tensor, y: torch.Tensor, error: float) -> torch.Tensor:
    z = torch.empty_like(x)
    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (x, y, z)]
    library.run(*pointers, ctypes.c_long(x.numel()), ctypes.c_float(error))
    return z


@pytest.mark.parametrize("error", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize("exponent", [1 / 3, 0.75, -0.2, 1.9, -1.9, 2.5, None])
def test_powers_are_within_their_bound(power: ctypes.CDLL, exponent: float | None, error: float) -> None:
    draw = torch.Generator().manual_seed(1)
    logarithms = torch.cat([torch.rand(100_000, generator=draw) * w - w / 2 for w in (253.9, 8.0, 1.0)])
    x = torch.exp2(logarithms)
    y = torch.rand(x.shape, generator=draw) * 5 - 2.5 if exponent is None else torch.full_like(x, exponent)
    found, exact = powers(power, x, y, error).double(), x.double() ** y.double()
    held = (exact > 2.0**-126) & (exact < 2.0**128 * (1 - 1e-6))
    assert ((found - exact).abs() / exact)[held].max() < 7e-7
    assert (found[exact > 2.0**128] == math.inf).all() and (found[exact < 2.0**-150] == 0).all()


def test_what_has_no_power_has_none(power: ctypes.CDLL) -> None:
    odd = torch.tensor([0.0, -0.0, 1.0, -1.0, -8.0, math.inf, -math.inf, math.nan, 1e-40, 3e38])
    exponents = torch.tensor([0.0, 1 / 3, -1 / 3, 1.0, -1.0, 2.0, 3.0, math.inf, -math.inf, math.nan])
    x, y = (grid.contiguous().view(-1) for grid in torch.meshgrid(odd, exponents, indexing="ij"))
    torch.testing.assert_close(powers(power, x, y, 0.0), x**y, rtol=1e-6, atol=0.0, equal_nan=True)
