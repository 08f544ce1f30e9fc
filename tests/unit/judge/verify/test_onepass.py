"""The one-pass comparison: its arithmetic as any C++ compiler makes it, and when it counts."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from cuda_agent.judge.verify import onepass
from cuda_agent.judge.verify.compare import _Sums
from cuda_agent.judge.verify.onepass import BLOCK, OnePass, joined

HEADERS = Path(onepass.__file__).parent
HOST = """
#include "onepass.h"
using namespace onepass;
template <class T> void measure(const T* c, const T* e, const T* p, const double* o, long long count,
                                const Bounds& bounds, double* out) {
    const long long blocks = (count + kBlock - 1) / kBlock;
    for (long long block = 0; block < blocks; ++block) {
        Sums halves[2];
        for (long long i = block * kBlock; i < count && i < (block + 1) * kBlock; ++i)
            halves[i % 2].add(c[i], e[i], p[i], o[i], bounds);
        halves[0].join(halves[1]);
        for (int i = 0; i < kNumbers; ++i) out[i * blocks + block] = halves[0].numbers[i];
    }
}
extern "C" int onepass_measure(int type, const void* c, const void* e, const void* p, const double* o,
                               long long count, double atol, double rtol, double least, double* out, void*) {
    const Bounds b{atol, rtol, least};
    if (type == 0) measure((const float*)c, (const float*)e, (const float*)p, o, count, b, out);
    if (type == 1) measure((const double*)c, (const double*)e, (const double*)p, o, count, b, out);
    if (type == 2) measure((const Half*)c, (const Half*)e, (const Half*)p, o, count, b, out);
    if (type == 3) measure((const Bfloat*)c, (const Bfloat*)e, (const Bfloat*)p, o, count, b, out);
    return 0;
}
"""
TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
COUNT = 5 * BLOCK + 321


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("onepass")
    (folder / "host.cpp").write_text(HOST)
    made = folder / "host.so"
    command = ["g++", "-O1", "-std=c++17", "-shared", "-fPIC", f"-I{HEADERS}", "-o", str(made), "host.cpp"]
    subprocess.run(command, cwd=folder, check=True)
    return ctypes.CDLL(str(made))


def _outputs(dtype: torch.dtype, error: float = 1e-3) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    oracle = torch.randn(COUNT, dtype=torch.float64) * torch.logspace(-6, 2, COUNT, dtype=torch.float64)
    candidate, eager, policy = ((oracle + error * torch.randn(COUNT)).to(dtype) for _ in range(3))
    return candidate, eager, policy, oracle


def _mine(host: Any, tensors: tuple[torch.Tensor, ...], atol: float, rtol: float) -> list[float]:
    out = torch.empty(7, -(-COUNT // BLOCK), dtype=torch.float64)
    status = host.onepass_measure(
        onepass._TYPES[str(tensors[0].dtype).removeprefix("torch.")],
        *(ctypes.c_void_p(t.data_ptr()) for t in tensors),
        ctypes.c_longlong(COUNT),
        *map(ctypes.c_double, (atol, rtol, atol or 1e-30)),
        ctypes.c_void_p(out.data_ptr()),
        ctypes.c_void_p(0),
    )
    assert status == 0
    return joined(out, COUNT, 1e-30)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("atol", "rtol"), [(1e-2, 1e-2), (1e-4, 0.0), (0.0, 1e-3)])
def test_it_measures_what_torch_measures(host: Any, dtype: torch.dtype, atol: float, rtol: float) -> None:
    tensors = _outputs(dtype)
    theirs = _Sums(1e-30, atol, rtol).piece(*tensors).tolist()
    mine = _mine(host, tensors, atol, rtol)
    assert mine == pytest.approx(theirs, rel=1e-6) and (theirs[0] > 0 or atol == 1e-2)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", range(4))
def test_what_is_not_finite_shows(host: Any, dtype: torch.dtype, value: float, place: int) -> None:
    tensors = _outputs(dtype)
    tensors[place][BLOCK + 7] = value
    assert not all(map(onepass._is_finite, _mine(host, tensors, 1e-2, 1e-2)))


@pytest.mark.parametrize("bits", [0x0001, 0x83FF, 0x0400, 0x3C01, 0x7BFF, 0xFBFF])
def test_every_kind_of_half(host: Any, bits: int) -> None:
    half = torch.zeros(COUNT, dtype=torch.int16)
    half[3] = bits - 65536 if bits > 32767 else bits
    value = half.view(torch.float16)
    zero, oracle = torch.zeros_like(value), torch.zeros(COUNT, dtype=torch.float64)
    assert _mine(host, (value, zero, zero, oracle), 0.0, 0.0)[2] == abs(float(value[3]))


@pytest.mark.parametrize("wrong", [None, 4, 8])
def test_it_counts_only_where_it_says_what_torch_says(host: Any, monkeypatch: pytest.MonkeyPatch, wrong: int) -> None:
    monkeypatch.setattr(onepass, "_fits", lambda _tensors: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: type("S", (), {"cuda_stream": 0})())
    one, tensors, bounds = OnePass(), _outputs(torch.float32), {"tiny": 1e-30, "atol": 1e-2, "rtol": 1e-2}
    one._library = host
    asked: list[int] = []

    def passes(*part: torch.Tensor) -> torch.Tensor:
        asked.append(part[0].numel())
        theirs = _Sums(*bounds.values()).piece(*part)
        if wrong is not None:
            theirs[wrong] *= 1.001
        return theirs

    found = [one.numbers(*tensors, **bounds, passes=passes) for _ in range(2)]
    assert len(asked) == 1, "once for a process"
    assert (found[0] is None) == (found[1] is None) == one.given_up == (wrong is not None)


def test_what_is_not_finite_proves_nothing(host: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onepass, "_fits", lambda _tensors: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: type("S", (), {"cuda_stream": 0})())
    one, tensors, bounds = OnePass(), _outputs(torch.float32), {"tiny": 1e-30, "atol": 1e-2, "rtol": 1e-2}
    one._library = host
    passes = _Sums(*bounds.values()).piece
    tensors[0][5] = float("inf")
    assert one.numbers(*tensors, **bounds, passes=passes) is None and not one.given_up
    assert one.numbers(*_outputs(torch.float32), **bounds, passes=passes) is not None


def test_a_cpu_has_none() -> None:
    one = OnePass()
    assert one.numbers(*_outputs(torch.float32), tiny=1e-30, atol=0.0, rtol=0.0, passes=_Sums.piece) is None
    assert one._library is None
