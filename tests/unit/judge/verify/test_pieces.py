"""A comparison piece by piece finds what a comparison of the whole finds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from cuda_agent.judge.verify.answers import EagerAlone, Piece, WholeAnswer, eager_copy, parts, parts_of
from cuda_agent.judge.verify.compare import all_finite, measure_all, rule
from cuda_agent.judge.verify.measured import BLOCK, Measured

PIECE = 2 * BLOCK
BOUNDS = {"atol": 1e-2, "rtol": 1e-2}


@dataclass(frozen=True)
class InPieces:
    """The same answer in pieces."""

    whole: WholeAnswer
    spec: dict[str, Any]

    @property
    def shapes(self) -> Sequence[Sequence[int]]:
        return self.whole.shapes

    def pieces(self, *, only_eager: bool = False) -> Iterator[Piece]:
        (piece,) = self.whole.pieces()
        for begins, counts in parts([tensor.numel() for tensor in piece.eager]):
            cut = [
                [t[b : b + n] for t, b, n in zip(tensors, begins, counts, strict=True)]
                for tensors in (piece.eager, piece.policy, piece.oracle)
            ]
            yield Piece(begins, *cut)


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cuda_agent.judge.verify.answers.PIECE", PIECE)
    monkeypatch.setattr("cuda_agent.judge.verify.compare.TILE", PIECE)


def drawn(dtype: torch.dtype, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.rand(shape, generator=generator) < 0.3
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(0, 50, shape, generator=generator).to(dtype)


def near(values: torch.Tensor, share: float, seed: int) -> torch.Tensor:
    """Returns the values with rounding errors; integers with another value in a small share of places."""
    generator = torch.Generator().manual_seed(seed)
    if values.is_floating_point():
        noise = torch.randn(values.shape, generator=generator)
        return (values.double() * (1 + share * noise)).to(values.dtype)
    where = torch.rand(values.shape, generator=generator) < share
    return values ^ where.to(values.dtype)


def both(mine: Sequence[torch.Tensor], answer: WholeAnswer) -> tuple[list[Measured], list[Measured]]:
    source = {"mine": parts_of(mine)}
    cut = measure_all(InPieces(answer, {}), source, **BOUNDS)["mine"]
    return measure_all(answer, source, **BOUNDS)["mine"], cut


def same(whole: Measured, cut: Measured) -> None:
    for field in ("max_abs_error", "max_rel_error", "beyond", "excuse", "apart"):
        if field == "excuse" and whole.discrete:
            # Where no value is in the majority, a part's most frequent one may be another than the whole's.
            assert cut.excuse == pytest.approx(whole.excuse, rel=2e-3)
            continue
        assert getattr(cut, field) == pytest.approx(getattr(whole, field), rel=1e-9, nan_ok=True), field
    for field in ("candidate", "eager"):
        for scale in ("whole", "block"):
            mine, theirs = (getattr(getattr(one, field), scale) for one in (cut, whole))
            assert mine == pytest.approx(theirs, rel=1e-9, nan_ok=True), (field, scale)
    assert bool(cut.failure) == bool(whole.failure)
    assert rule(cut, 2e-6).passed == rule(whole, 2e-6).passed


TYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool]
SHAPES = [(0,), (1,), (3, 0, 5), (7, 11), (5 * BLOCK,), (2 * BLOCK + 17,), (33, 700), (3, 5, 1000)]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("share", [0.0, 1e-7, 3e-4, 0.1])
def test_the_numbers_and_the_verdict_are_those_of_the_whole(
    dtype: torch.dtype, shape: tuple[int, ...], share: float
) -> None:
    oracle = drawn(dtype, shape)
    oracle = oracle.double() if dtype.is_floating_point else oracle
    eager = near(oracle.to(dtype), 1e-7 if dtype.is_floating_point else 2e-4, seed=1)
    policy = near(eager, 1e-7, seed=2)
    answer = WholeAnswer({}, [eager], [policy], [oracle], "")
    (whole,), (cut,) = both([near(eager, share, seed=3)], answer)
    same(whole, cut)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("which", ["candidate", "eager", "policy", "oracle", "all"])
def test_what_is_not_finite_counts_the_same(value: float, which: str) -> None:
    tensors = {name: drawn(torch.float32, (3 * PIECE + 5,)) for name in ("candidate", "eager", "policy", "oracle")}
    for name, tensor in tensors.items():
        if which in (name, "all"):
            tensor[PIECE + 3] = value
    answer = WholeAnswer({}, [tensors["eager"]], [tensors["policy"]], [tensors["oracle"].double()], "")
    whole, cut = both([tensors["candidate"]], answer)
    same(whole[0], cut[0])
    # Where PyTorch's answers differ, each of them is right.
    assert rule(cut[0], 2e-6).passed is (which != "candidate")
    assert all_finite(InPieces(answer, {})) is (which not in ("eager", "all"))


def test_a_wrong_element_anywhere_is_seen() -> None:
    values = drawn(torch.float32, (3 * PIECE + 5,))
    answer = WholeAnswer({}, [values], [values], [values.double()], "")
    for place in (0, PIECE - 1, PIECE, 3 * PIECE + 4):
        wrong = values.clone()
        wrong[place] += 1
        whole, cut = both([wrong], answer)
        same(whole[0], cut[0])
        assert not rule(cut[0], 2e-6).passed


def test_several_outputs_of_several_sizes() -> None:
    outputs = [drawn(t, s) for t, s in [(torch.float32, (9, 5000)), (torch.int64, (9,)), (torch.float32, (9, 5000)),
                                        (torch.bfloat16, (9, 0)), (torch.float32, (2 * BLOCK + 1,))]]  # fmt: skip
    oracle = [t.double() if t.is_floating_point() else t for t in outputs]
    answer = WholeAnswer({}, outputs, outputs, oracle, "")
    for whole, cut in zip(*both([near(t, 1e-3, seed=3) for t in outputs], answer), strict=True):
        same(whole, cut)
    copies = eager_copy(InPieces(answer, {}))
    assert all(a.equal(b) and a.dtype == b.dtype for a, b in zip(copies, outputs, strict=True))
    assert [len(found) for found in both(outputs, replace(answer))] == [5, 5]


def test_eager_alone_has_no_error_of_its_own() -> None:
    values = drawn(torch.float32, (3 * PIECE,))
    answer = InPieces(WholeAnswer({}, [values], [values * 2], [values.double() * 3], ""), {})
    (found,) = measure_all(EagerAlone(answer), {"": parts_of([values])}, **BOUNDS)[""]
    assert found.candidate.whole == found.eager.whole == found.excuse == 0


def test_values_out_of_range_are_seen_in_a_later_piece() -> None:
    values = torch.arange(3 * PIECE) % 100
    values[5] = 1000
    other = values.clone()
    other[5] = 7
    answer = WholeAnswer({}, [values], [values], [other], "")
    wrong = values.clone()
    wrong[-1] = 1001
    (whole,), (cut,) = both([wrong], answer)
    assert "range" in whole.failure and cut.failure == whole.failure
    wrong[-1] = 999
    (whole,), (cut,) = both([wrong], answer)
    assert not whole.failure and not cut.failure


def test_the_parts_cover_every_element_once() -> None:
    sizes = [3 * PIECE + 1, 5, 0, 3 * PIECE + 1, PIECE]
    seen = [torch.zeros(size, dtype=torch.int64) for size in sizes]
    for begins, counts in parts(sizes):
        for there, begin, count in zip(seen, begins, counts, strict=True):
            there[begin : begin + count] += 1
    assert all(bool((there == 1).all()) for there in seen)
