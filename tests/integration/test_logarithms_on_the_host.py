"""Logarithms as CUDA kernels compute them, by the host's compiler."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import pytest
import torch

from cuda_agent.playbook.codegen import environment

pytestmark = pytest.mark.integration

HOST = """
#include <cmath>
#include <cstring>
#define __device__
#define __forceinline__ inline
static unsigned __float_as_uint(float x) { unsigned i; memcpy(&i, &x, 4); return i; }
static float __uint_as_float(unsigned i) { float x; memcpy(&x, &i, 4); return x; }
FUNCTIONS
extern "C" void run(const float* x, float* natural, float* two, float* ten, long count) {
  for (long i = 0; i < count; ++i) natural[i] = f_log(x[i]), two[i] = f_log2(x[i]), ten[i] = f_log10(x[i]);
}
"""


@pytest.fixture(scope="module")
def logarithms(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    header = environment().get_template("skills/shared/elementwise.cuh").render()
    form = r"^__device__ __forceinline__ float (?:log_\w+|f_log|f_log2|f_log10)\(float x.*?^}\n"
    functions = re.findall(form, header, re.MULTILINE | re.DOTALL)
    assert len(functions) == 5
    folder: Path = tmp_path_factory.mktemp("logarithms")
    (folder / "x.cpp").write_text(HOST.replace("FUNCTIONS", "".join(functions)))
    subprocess.run(["g++", "-O2", "-shared", "-fPIC", f"{folder}/x.cpp", "-o", f"{folder}/x.so"], check=True)
    return ctypes.CDLL(f"{folder}/x.so")


def of(library: ctypes.CDLL, x: torch.Tensor) -> list[torch.Tensor]:
    found = [torch.empty_like(x) for _ in range(3)]
    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (x, *found)]
    library.run(*pointers, ctypes.c_long(x.numel()))
    return found


def test_they_keep_their_digits_around_one(logarithms: ctypes.CDLL) -> None:
    draw = torch.Generator().manual_seed(1)
    x = torch.cat([torch.exp2(torch.rand(100_000, generator=draw) * width - width / 2) for width in (251.0, 4.0, 1e-3)])
    x = torch.cat([x, torch.tensor([1.0, 0.9999999, 0.99999994, 1.0000001, 1.1754944e-38, 3.4028235e38])])
    for ours, function in zip(of(logarithms, x), (torch.log, torch.log2, torch.log10), strict=True):
        exact = function(x.double())
        assert ((ours.double() - exact).abs() <= 4e-7 * exact.abs()).all()


def test_their_ends(logarithms: ctypes.CDLL) -> None:
    for ours in of(logarithms, torch.tensor([0.0, -0.0, torch.inf, -1.0, -torch.inf, torch.nan])):
        assert ours[:3].tolist() == [-torch.inf, -torch.inf, torch.inf]
        assert ours[3:].isnan().all()
