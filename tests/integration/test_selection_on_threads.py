"""The selection kernel's own text, its block run as threads of the host: what it does, where no GPU can run it."""

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

SOURCE = Path(skills.__file__).parent / "selection" / "selection.cu"
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
"""


@pytest.fixture(scope="module")
def select(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    folder = tmp_path_factory.mktemp("threads")
    text = SOURCE.read_text().replace("#include <cuda_runtime.h>\n", f'#include "{HARNESS}"\n')
    text = text.replace("extern __shared__ uint32_t memory[];", "uint32_t* memory = shared_memory;")
    # Without what launches it.
    text = text[: text.index("template <int THREADS>\nint run")] + "}  // namespace\n" + CALL.format(threads=THREADS)
    (folder / "select.cpp").write_text(text)
    command = ["g++", "-std=c++20", "-O1", "-w", "-shared", "-fPIC", str(folder / "select.cpp"), "-lpthread"]
    subprocess.run([*command, "-o", str(folder / "select.so")], check=True)
    function = ctypes.CDLL(str(folder / "select.so")).select_on_threads

    def call(
        x: torch.Tensor, k: int, *, largest: bool, last: bool = False, nan_wins: bool = False, held: bool = True
    ) -> tuple[torch.Tensor, torch.Tensor]:
        shape = (len(x),) if last else (len(x), k)
        values, places = torch.full(shape, float("nan")), torch.full(shape, -1)
        tensors = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (values, places, x)]
        numbers = [ctypes.c_int(int(n)) for n in (x.shape[1], k, largest, last, nan_wins, held)]
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


@pytest.mark.parametrize("descending", [True, False])
@pytest.mark.parametrize("size", [1, 5, 64, 777])
def test_a_whole_row_is_sorted_and_equal_numbers_stay_in_order(
    select: Callable[..., tuple[torch.Tensor, torch.Tensor]], size: int, descending: bool
) -> None:
    x = (torch.randn(2, size) * 2).round() + 0.0
    values, places = select(x, size, largest=descending, held=False)
    truth = torch.sort(x, descending=descending, stable=True)
    assert torch.equal(values, truth.values) and torch.equal(places, truth.indices)


def test_numbers_that_are_none(select: Callable[..., tuple[torch.Tensor, torch.Tensor]]) -> None:
    x = torch.tensor([[3.0, float("nan"), -float("inf"), float("inf"), -0.0], [5.0, 1.0, 4.0, 2.0, 3.0]])
    values, _ = select(x, 2, largest=True)
    assert values[0].isnan().tolist() == [True, False] and values[0, 1] == float("inf")
    value, place = select(x, 3, largest=False, last=True, nan_wins=True)
    assert value[0].isnan() and place[0] == 1
    assert (value[1], place[1]) == (3.0, 4) == (x[1].median(), 4)
