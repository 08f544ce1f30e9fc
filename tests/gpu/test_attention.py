"""Attention in one kernel on a GPU: every size of a head and every setting against float64."""

from __future__ import annotations

import ctypes

import pytest
import torch
import torch.nn.functional as F
from library_cases import relative_error
from library_kernels import compiled, pointers

from cuda_agent.playbook.skills.attention.skill import CONFIGS, kernel

pytestmark = pytest.mark.gpu

WIDTHS = (4, 20, 32, 48, 64, 80, 96, 128)


@pytest.fixture(scope="module")
def launchers(tmp_path_factory):
    folder, found = tmp_path_factory.mktemp("attention"), {}
    for width in WIDTHS:
        (folder / f"attention_{width}.cu").write_text(kernel(width))
        found[width] = getattr(compiled(folder / f"attention_{width}.cu", folder, ()), f"launch_attention_{width}")
    return found


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("rows", "keys"), [(128, 128), (1, 1), (67, 67), (200, 333), (333, 200), (1024, 1024)])
def test_every_setting_against_float64(launchers, width, causal, rows, keys):
    outer, heads, scale = 2, 3, 0.17
    q, k, v = (torch.randn(outer, length, heads, width, device="cuda") for length in (rows, keys, keys))
    views = [x.transpose(1, 2) for x in (q, k, v)]
    truth = F.scaled_dot_product_attention(*(x.double() for x in views), is_causal=causal, scale=scale)
    numbers = [outer, heads, rows, keys]
    # Heads side by side, as the next product reads them.
    empty = torch.full((outer, rows, heads, width), float("nan"), device="cuda")
    for view in (*views, empty.transpose(1, 2)):
        numbers += [view.stride(0), view.stride(1), view.stride(2)]
    geometry = (ctypes.c_longlong * len(numbers))(*numbers)
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    for config in range(CONFIGS):
        out = empty.clone().transpose(1, 2)
        status = launchers[width](*pointers(out, *views), geometry, ctypes.c_float(scale), int(causal), config, stream)
        torch.cuda.synchronize()
        assert status == 0, (status, config)
        assert relative_error(out, truth) < (1.5e-3 if config else 2e-5), config
    assert launchers[width](*pointers(out, *views), geometry, ctypes.c_float(scale), 0, CONFIGS, stream) == -1


def test_large_scores_do_not_overflow(launchers):
    """A running maximum keeps what exp() gets below zero; NaN stays NaN."""
    q, k, v = (30 * torch.randn(1, 1, 256, 64, device="cuda") for _ in range(3))
    v[0, 0, 7, 5] = float("nan")
    geometry = (ctypes.c_longlong * 16)(1, 1, 256, 256, *(0, 0, 64) * 4)
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    truth = F.scaled_dot_product_attention(*(x.double() for x in (q, k, v)))
    for config in range(CONFIGS):
        out = torch.empty_like(q)
        assert launchers[64](*pointers(out, q, k, v), geometry, ctypes.c_float(0.125), 0, config, stream) == 0
        torch.cuda.synchronize()
        assert out[..., 5].isnan().all() and out[..., :5].isfinite().all()
        assert relative_error(out[..., 6:], truth[..., 6:]) < (0.05 if config else 1e-3)
