"""Selection on a GPU: every setting against torch, long rows and NaN included."""

from __future__ import annotations

import ctypes

import pytest
import torch
from library_kernels import compiled, pointers, source_of

from cuda_agent.playbook.skills.selection.skill import CONFIGS, LONGEST_SORTED, SORT_CONFIGS

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def launch(tmp_path_factory):
    return compiled(source_of("selection"), tmp_path_factory.mktemp("selection"), ()).launch_selection


@pytest.fixture(scope="module")
def launch_sort(tmp_path_factory):
    return compiled(source_of("selection", "sort"), tmp_path_factory.mktemp("sort"), ()).launch_sort


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
@pytest.mark.parametrize("descending", [True, False])
@pytest.mark.parametrize("size", [1, 31, 256, 257, 1000, 4096, 8193, 16_384, 20_000, 32_768])
def test_every_setting_sorts_whole_rows(launch_sort, size, descending, dtype):
    if size > LONGEST_SORTED[str(dtype).removeprefix("torch.")]:
        return
    # With zeros of both signs, which are equal, and what lies at the ends.
    x = (torch.randn(17, size + 3, device="cuda") * 100).round()
    x[:, ::5] *= 0.0
    if dtype == torch.float32:
        x[3, 0] = x[4, size // 2] = float("nan")
        x[5, 0], x[5, size // 3] = float("inf"), -float("inf")
    x = x.to(dtype)[:, :size]
    if dtype == torch.int64:
        x[3, 0], x[4, 0] = -(2**63), 2**63 - 1
    truth = torch.sort(x, descending=descending, stable=True)
    numbers = (ctypes.c_longlong * 5)(17, size, x.stride(0), int(descending), int(dtype == torch.int64))
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    for config in range(SORT_CONFIGS):
        values, places = torch.empty_like(truth.values), torch.full_like(truth.indices, -1)
        status = launch_sort(*pointers(values, places, x), numbers, config, stream)
        assert status == (-1 if config == 1 and size > 16_384 else 0), (status, config)
        if status == 0:
            assert launch_sort(*pointers(None, places, x), numbers, config, stream) == 0
            assert launch_sort(*pointers(values, None, x), numbers, config, stream) == 0
            torch.cuda.synchronize()
            assert torch.equal(values.double().nan_to_num(7.5), truth.values.double().nan_to_num(7.5))
            assert torch.equal(places, truth.indices)


@pytest.mark.parametrize("size", [41, 1001])
def test_a_median_with_nan_is_nan(launch, size):
    x = torch.randn(5, size, device="cuda")
    x[2, size - 7] = float("nan")
    for config in range(CONFIGS):
        values, _ = selected(launch, x, size // 2 + 1, config, largest=False, last=True, nan_wins=True)
        truth = x.median(-1).values
        assert torch.equal(values.nan_to_num(7.0), truth.nan_to_num(7.0))
