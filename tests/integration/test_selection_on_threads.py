"""The selection and sorting kernels' own text, their blocks run as threads of the host, where no GPU can run them."""

from __future__ import annotations

import ctypes
import itertools
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cuda_agent.playbook import skills

pytestmark = pytest.mark.integration

FOLDER = Path(skills.__file__).parent / "selection"
HARNESS = Path(__file__).parent.parent / "data" / "block_on_threads.h"
THREADS = 32
CALL = """
extern "C" void select_on_threads(float* values, long long* places, const float* x, long long rows, int size, int k,
                                  int largest, int only_last, int nan_wins, int held) {{
  int padded = 1;
  while (padded < k) padded *= 2;
  run_blocks(rows, {threads}, BINS + {threads} + 2 * padded + size + 16, [=] {{
    const auto kernel = held ? select_rows<{threads}, true> : select_rows<{threads}, false>;
    kernel(values, places, x, size, size, k, padded, largest, only_last, nan_wins);
  }});
}}
template <int EACH>
void take(float* values, long long* places, const float* x, long long rows, int size, int k, int largest, int only_last,
          int nan_wins) {{
  if constexpr (EACH < MOST_EACH) {{
    if (size > 32 * EACH) return take<2 * EACH>(values, places, x, rows, size, k, largest, only_last, nan_wins);
  }}
  run_blocks((rows + WARPS - 1) / WARPS, 32 * WARPS, 1, [=] {{
    take_few<EACH>(values, places, x, rows, size, size, k, largest, only_last, nan_wins);
  }});
}}
extern "C" void take_on_threads(float* values, long long* places, const float* x, long long rows, int size, int k,
                                int largest, int only_last, int nan_wins, int) {{
  take<1>(values, places, x, rows, size, k, largest, only_last, nan_wins);
}}
"""
SORT = """
template <typename T, typename Key, int EACH>
void sort(void* values, long long* places, const void* x, int size, int descending) {
  int threads = 32;
  while (threads * EACH < size) threads *= 2;
  run_blocks(2, threads, (threads * EACH * 33 / 32) * (sizeof(Key) + 2) / 4 + 4, [=] {
    sort_rows<T, Key, EACH>(static_cast<T*>(values), places, static_cast<const T*>(x), size, size, descending);
  });
}
extern "C" void sort_on_threads(void* values, long long* places, const void* x, int size, int descending, int whole,
                                int many) {
  if (whole) return many ? sort<long long, uint64_t, 16>(values, places, x, size, descending)
                         : sort<long long, uint64_t, 8>(values, places, x, size, descending);
  return many ? sort<float, uint32_t, 16>(values, places, x, size, descending)
              : sort<float, uint32_t, 8>(values, places, x, size, descending);
}
"""


def loaded(kernel: str, before: str, more: str, folder: Path) -> ctypes.CDLL:
    """The kernels of a source up to what launches them, and what runs them here."""
    text = (FOLDER / f"{kernel}.cu").read_text().replace("#include <cuda_runtime.h>\n", f'#include "{HARNESS}"\n')
    text = text.replace("extern __shared__ uint32_t memory[];", "uint32_t* memory = shared_memory;")
    text = text.replace("extern __shared__ uint64_t memory[];", "uint32_t* memory = shared_memory;")
    (folder / f"{kernel}.cpp").write_text(text[: text.index(before)] + "}  // namespace\n" + more)
    command = ["g++", "-std=c++20", "-O1", "-w", "-shared", "-fPIC", str(folder / f"{kernel}.cpp"), "-lpthread"]
    subprocess.run([*command, "-o", str(folder / f"{kernel}.so")], check=True)
    return ctypes.CDLL(str(folder / f"{kernel}.so"))


@pytest.fixture(scope="module")
def select(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    library = loaded(
        "selection",
        "template <int EACH>\nint run_few",
        CALL.format(threads=THREADS),
        tmp_path_factory.mktemp("threads"),
    )

    def call(
        x: torch.Tensor,
        k: int,
        *,
        largest: bool,
        last: bool = False,
        nan_wins: bool = False,
        held: bool = True,
        few: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        shape = (len(x),) if last else (len(x), k)
        values, places = torch.full(shape, float("nan")), torch.full(shape, -1)
        tensors = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (values, places, x)]
        numbers = [ctypes.c_int(int(n)) for n in (x.shape[1], k, largest, last, nan_wins, held)]
        function = library.take_on_threads if few else library.select_on_threads
        function(*tensors, ctypes.c_longlong(len(x)), *numbers)
        return values, places

    return call


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("ties", [False, True])
def test_the_first_k_and_the_kth(
    select: Callable[..., tuple[torch.Tensor, torch.Tensor]], held: bool, ties: bool
) -> None:
    for size, k, largest in itertools.product((1, 5, 64, 777), (1, 2, 33), (True, False)):
        if k > size:
            continue
        x = torch.randn(2, size)
        x = (x * 4).round() / 4 if ties else x
        values, places = select(x, k, largest=largest, held=held)
        truth = torch.topk(x, k, largest=largest).values
        assert torch.equal(values, truth) and torch.equal(x.gather(1, places), truth)
        assert all(len(set(row.tolist())) == k for row in places)
        value, place = select(x, k, largest=largest, last=True, held=held)
        assert torch.equal(value, truth[:, -1]) and torch.equal(x.gather(1, place[:, None])[:, 0], value)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(("size", "k"), [(1, 1), (17, 1), (31, 31), (33, 32), (200, 5), (512, 2)])
def test_a_few_of_short_rows(
    select: Callable[..., tuple[torch.Tensor, torch.Tensor]], size: int, k: int, largest: bool
) -> None:
    x = (torch.randn(11, size) * 3).round()
    x[1, 0], x[2, -1], x[3, 0] = float("nan"), float("inf"), -float("inf")
    truth = torch.sort(x, descending=largest, stable=True)
    values, places = select(x, k, largest=largest, few=True)
    assert torch.equal(values.nan_to_num(7.5), truth.values[:, :k].nan_to_num(7.5))
    assert torch.equal(places, truth.indices[:, :k])
    _, place = select(x, k, largest=largest, last=True, few=True)
    assert torch.equal(place, truth.indices[:, k - 1])
    value, _ = select(x, k, largest=False, last=True, nan_wins=True, few=True)
    assert value.isnan().tolist() == x.isnan().any(-1).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_a_whole_row_is_sorted_and_equal_numbers_stay_in_order(dtype: torch.dtype, tmp_path: Path) -> None:
    sort = loaded("sort", "template <typename T, typename Key, int EACH>\nint run", SORT, tmp_path).sort_on_threads
    for size, descending, many in itertools.product((1, 33, 256, 257, 600, 1100), (False, True), (False, True)):
        x = (torch.randn(2, size) * 20).round()
        x[:, ::7] *= 0.0
        if dtype == torch.float32:
            x[0, 0], x[1, -1], x[1, 0] = float("nan"), float("inf"), -float("inf")
        x = x.to(dtype)
        if dtype == torch.int64:
            x[0, 0], x[1, 0] = -(2**63), 2**63 - 1
        values, places = torch.empty_like(x), torch.empty(x.shape, dtype=torch.int64)
        tensors = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (values, places, x)]
        sort(*tensors, *map(ctypes.c_int, (size, descending, dtype == torch.int64, many)))
        truth = torch.sort(x, descending=descending, stable=True)
        assert torch.equal(places, truth.indices), (size, descending, many)
        assert torch.equal(values.double().nan_to_num(7.5), truth.values.double().nan_to_num(7.5))


def test_numbers_that_are_none(select: Callable[..., tuple[torch.Tensor, torch.Tensor]]) -> None:
    x = torch.tensor([[3.0, float("nan"), -float("inf"), float("inf"), -0.0], [5.0, 1.0, 4.0, 2.0, 3.0]])
    values, _ = select(x, 2, largest=True)
    assert values[0].isnan().tolist() == [True, False] and values[0, 1] == float("inf")
    value, place = select(x, 3, largest=False, last=True, nan_wins=True)
    assert value[0].isnan() and place[0] == 1
    assert (value[1], place[1]) == (3.0, 4) == (x[1].median(), 4)
