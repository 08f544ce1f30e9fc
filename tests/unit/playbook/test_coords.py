"""Reshapes as affine positions: factoring of a frame, refusals."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from cuda_agent.playbook.coords import Conflict, Coord, Frame, NeedSplit, delinearise, is_bijection, matched


def at(coord: Coord, index: dict[tuple[int, int], int]) -> int:
    return coord.const + sum(coef * index[dim] for dim, coef in coord.terms)


@pytest.mark.parametrize(
    ("shape", "target"),
    [((6, 4), (24,)), ((24,), (6, 4)), ((4, 6, 8), (4, 2, 24)), ((2, 12), (2, 3, 4)), ((1, 8), (8, 1))],
)
def test_reshape_follows_row_major_order(shape: tuple[int, ...], target: tuple[int, ...]) -> None:
    frame = Frame([[size] for size in shape])
    while True:
        try:
            coords = delinearise(frame, frame.linear(frame.dims()), target, "x")
            break
        except NeedSplit as need:
            frame.split(need.dim, need.inner)
    dims = frame.dims()
    for position, values in enumerate(itertools.product(*(range(frame.size(dim)) for dim in dims))):
        index = dict(zip(dims, values, strict=True))
        linear = 0
        for coord, size in zip(coords, target, strict=True):
            linear = linear * size + at(coord, index)
        assert linear == position


@pytest.mark.parametrize(
    ("shape", "other", "expected"),
    [
        ((2, 3, 4, 5), (2, 12, 5), [([0], [0]), ([1, 2], [1]), ([3], [2])]),
        ((6, 1, 4), (1, 3, 8), [([0, 2], [1, 2])]),
        ((4, 6, 5), (8, 3, 5), [([0, 1], [0, 1]), ([2], [2])]),
        ((1, 1), (1,), []),
        ((3, 0, 2), (0, 7), [([0, 1, 2], [0, 1])]),
    ],
)
def test_dimensions_of_a_reshape_are_matched(shape: Any, other: Any, expected: Any) -> None:
    assert matched(shape, other) == expected


def test_sizes_without_common_factors_conflict() -> None:
    frame = Frame([[6], [4]])
    with pytest.raises(Conflict):
        delinearise(frame, frame.linear(frame.dims()), (4, 6), "x")


def test_bijection() -> None:
    frame = Frame([[6], [4]])
    assert is_bijection(frame, frame.linear(frame.dims()), 24)
    assert not is_bijection(frame, frame.linear(frame.dims()).plus(Coord(const=1)), 24)
    assert not is_bijection(frame, Coord((((0, 0), 1),)), 24)
