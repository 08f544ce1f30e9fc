"""Selection on a GPU: every setting against torch, long rows and NaN included."""

from __future__ import annotations

import ctypes

import pytest
import torch
from library_kernels import compiled, pointers, source_of

from cuda_agent.playbook.skills.selection.skill import CONFIGS

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def launch(tmp_path_factory):
    return compiled(source_of("selection"), tmp_path_factory.mktemp("selection"), ()).launch_selection


def selected(launch, x, k, config, *, largest=True, last=False, nan_wins=False):
    rows, size = x.shape
    shape = (rows,) if last else (rows, k)
    values = torch.full(shape, float("nan"), device="cuda")
    places = torch.full(shape, -1, device="cuda")
    numbers = (ctypes.c_longlong * 7)(rows, size, x.stride(0), k, int(largest), int(last), int(nan_wins))
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    status = launch(*pointers(values, places, x), numbers, config, stream)
    torch.cuda.synchronize()
    assert status == 0, (status, config)
    return values, places


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(
    ("size", "k"),
    [(1, 1), (17, 1), (33, 32), (64, 3), (200, 8), (512, 32), (1000, 1000), (8192, 50), (40_000, 7), (100_000, 2048)],
)
def test_every_setting_finds_what_torch_finds(launch, size, k, largest):
    x = torch.randn(17, size + 3, device="cuda")[:, :size]
    truth = torch.topk(x, k, largest=largest).values
    for config in range(CONFIGS):
        values, places = selected(launch, x, k, config, largest=largest)
        assert torch.equal(values, truth) and torch.equal(x.gather(1, places), truth)
        value, place = selected(launch, x, k, config, largest=largest, last=True)
        assert torch.equal(value, truth[:, -1]) and torch.equal(x.gather(1, place[:, None])[:, 0], value)


@pytest.mark.parametrize("descending", [True, False])
@pytest.mark.parametrize("size", [1, 31, 1000, 4096, 16_384])
def test_every_setting_sorts_whole_rows(launch, size, descending):
    # With zeros of both signs, which are equal.
    x = (torch.randn(17, size, device="cuda") * 100).round()
    x[:, ::5] *= 0.0
    truth = torch.sort(x, descending=descending, stable=True)
    for config in range(CONFIGS):
        values, places = selected(launch, x, size, config, largest=descending)
        assert torch.equal(values, truth.values) and torch.equal(places, truth.indices)


@pytest.mark.parametrize("size", [41, 1001])
def test_a_median_with_nan_is_nan(launch, size):
    x = torch.randn(5, size, device="cuda")
    x[2, size - 7] = float("nan")
    for config in range(CONFIGS):
        values, _ = selected(launch, x, size // 2 + 1, config, largest=False, last=True, nan_wins=True)
        truth = x.median(-1).values
        assert torch.equal(values.nan_to_num(7.0), truth.nan_to_num(7.0))
