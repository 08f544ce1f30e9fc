"""An ill-conditioned place excuses no other, and what PyTorch itself misses is excused where it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from cuda_agent.judge.verify.compare import FLOOR, measure, rule
from cuda_agent.judge.verify.measured import Measured, Ruling
from cuda_agent.judge.verify.places import worst_line

Shape = tuple[int, ...]


def noise(shape: Shape, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def compared(candidate: Any, eager: Any, oracle: Any) -> Measured:
    return measure(candidate, eager, eager, oracle, atol=1e-2, rtol=1e-2)


def ruled(sizes: torch.Tensor, oracle: torch.Tensor, change: Callable[[Any], Any] | None = None) -> Ruling:
    """Rules on a candidate whose errors are half of eager's, after a change."""
    eager, mine = (oracle + sizes * noise(tuple(oracle.shape), seed) / seed for seed in (1, 2))
    mine = mine if change is None else change(mine)
    return rule(compared(mine.float(), eager.float(), oracle), FLOOR)


def ill(shape: Shape, place: Any, size: float = 1.0, rest: float = 1e-7) -> torch.Tensor:
    """Returns the sizes of errors: large at a place, small elsewhere."""
    sizes = torch.full(shape, rest, dtype=torch.float64)
    sizes[place] = size
    return sizes


#: where eager is ill-conditioned -> a place where it isn't.
PLACES: dict[str, tuple[Shape, Any, Any]] = {
    "the last column": ((64, 64), (..., -1), (..., slice(0, 63))),
    "the last column, another": ((64, 64), (..., -1), (..., slice(0, 3))),
    "the first column": ((3000, 33), (..., 0), (..., slice(1, 4))),
    "a row": ((64, 64), 5, slice(6, 12)),
    "a row, another element": ((700, 300), 5, (6, 7)),
    "rows and columns": ((512, 512), (slice(0, 40), slice(100, 140)), (slice(41, 44), slice(300, 340))),
    "a channel": ((4, 16, 20, 20), (slice(None), 3), (slice(None), 4)),
    "half of all rows": ((256, 128), slice(0, 128), (slice(128, 255), slice(0, 9))),
    "half of all columns": ((256, 128), (..., slice(0, 64)), (..., slice(64, 65))),
    "a part of a vector": ((20000,), slice(0, 4096), slice(9000, 9100)),
    "an element": ((128, 128), (3, 5), (3, slice(6, 12))),
    "elements": ((300, 300), (range(300), range(300)), (slice(0, 100), 5)),
    "a long row": ((3, 70000), 1, (2, 30000)),
}


@pytest.mark.parametrize("name", PLACES)
def test_what_is_wrong_elsewhere_is_not_excused(name: str) -> None:
    shape, place, other = PLACES[name]
    oracle, sizes = noise(shape, 0), ill(shape, place)

    def wrong(mine: torch.Tensor) -> torch.Tensor:
        mine[other] += 0.2
        return mine

    assert ruled(sizes, oracle).passed, "honest"
    ruling = ruled(sizes, oracle, wrong)
    assert not ruling.passed, ruling


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("size", [0.03, 1.0, 1e4])
@pytest.mark.parametrize("rest", [1e-7, 1e-4, 3e-3])
def test_honest_errors_pass(name: str, size: float, rest: float) -> None:
    shape, place, _ = PLACES[name]
    # ReLU makes another thing of errors that are far larger than the values.
    for relu in (False, True)[: 2 if size <= 1 else 1]:
        oracle, sizes = noise(shape, 0), ill(shape, place, size, rest)
        eager, mine = (oracle + sizes * noise(shape, seed) for seed in (3, 4))
        if relu:
            oracle, eager, mine = oracle.relu(), eager.relu(), mine.relu()
        measured = compared(mine.float(), eager.float(), oracle)
        assert measured.beyond <= measured.excuse, (measured, relu)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(64, 64), (1000,), (3, 5), (33, 4000), (1,)], ids=str)
def test_low_precision_passes(dtype: torch.dtype, shape: Shape) -> None:
    for seed in range(5):
        oracle = 30 * noise(shape, seed)
        eager, mine = (oracle + 0.1 * noise(shape, seed + 10 * i) for i in (1, 2))
        measured = compared(mine.to(dtype), eager.to(dtype), oracle)
        assert measured.beyond <= measured.excuse or oracle.numel() == 1


def test_values_that_flip_here_and_there_may_flip_elsewhere() -> None:
    """Rounded values and masks: eager is right in most places and off by one in a few."""
    oracle = torch.randint(0, 9, (500, 700), generator=torch.Generator().manual_seed(1)).double()
    flips = [torch.rand(oracle.shape, generator=torch.Generator().manual_seed(i)) < 1e-3 for i in (1, 2)]
    eager, mine = ((oracle + flip).float() for flip in flips)
    measured = compared(mine, eager, oracle)
    assert measured.beyond <= measured.excuse
    many = torch.rand(oracle.shape, generator=torch.Generator().manual_seed(3)) < 1e-2
    measured = compared((oracle + many).float(), eager, oracle)
    assert measured.beyond > measured.excuse, "ten times as many"
    one = oracle.clone()
    one[:100, 5] += 1
    measured = compared(one.float(), eager, oracle)
    assert measured.beyond > measured.excuse, "as many, all in one column"


def test_rows_that_flip_may_be_others() -> None:
    """A choice of an expert at a tie changes most of a row."""
    oracle, other = noise((4000, 300), 0), noise((4000, 300), 1)

    def flipped(share: float, seed: int) -> torch.Tensor:
        rows = torch.rand(4000, 1, generator=torch.Generator().manual_seed(seed)) < share
        return torch.where(rows, other, oracle).float()

    eager = flipped(1e-3, 2)
    assert rule(compared(flipped(1e-3, 3), eager, oracle), FLOOR).passed
    assert not rule(compared(flipped(2e-2, 3), eager, oracle), FLOOR).passed
    measured = compared(flipped(1e-3, 3), oracle.float(), oracle)
    assert measured.beyond > measured.excuse, "PyTorch flips none"


def test_a_silent_loss_of_precision_beside_an_ill_conditioned_column_is_seen() -> None:
    oracle = noise((256, 64), 0)
    sizes = ill((256, 64), (..., -1))

    def rounded(mine: torch.Tensor) -> torch.Tensor:
        mine[:, :-1] = mine[:, :-1].bfloat16().double()
        return mine

    honest = ruled(sizes, oracle)
    assert honest.passed and honest.loose
    ruling = ruled(sizes, oracle, rounded)
    assert not ruling.passed and ruling.over_budget and "row or column" in ruling.reason
    assert not ruled(ill((256, 64), 7), oracle, lambda mine: mine.bfloat16().double()).passed
    assert not ruled(torch.full((256, 64), 1e-7, dtype=torch.float64), oracle).loose


def test_lines_of_a_tile_that_begins_within_a_row() -> None:
    own, o = torch.full((100, 40), 1e-3), torch.ones(100, 40, dtype=torch.float64)
    mine = own.clone()
    mine[:, 7] = 1e-2
    flat = [tensor.double().reshape(-1)[13:] for tensor in (mine, own, o)]
    assert worst_line(*flat, begin=13, width=40, least=1e-6) == pytest.approx((1e-2, 1e-3))
    assert worst_line(*flat, begin=13, width=1, least=1e-6) == (0.0, 0.0)
    assert worst_line(*(t[:0] for t in flat), begin=0, width=40, least=1e-6) == (0.0, 0.0)
