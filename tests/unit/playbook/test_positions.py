"""Integers known before a kernel runs: intervals, and positions taken apart without dividing."""

from __future__ import annotations

import math

import pytest

from cuda_agent.playbook.coords import Coord
from cuda_agent.playbook.expression import Expr
from cuda_agent.playbook.kernel import Kernel, Store
from cuda_agent.playbook.positions import ANYTHING, Ranges
from cuda_agent.playbook.skills.shared.launchers import index_type

AXIS = (0, 0)
#: an index from memory, of 64 bits: nothing is known of it; and the same counted from the start of 130
UNKNOWN = Expr("load", "i64", name="i", dtype="int64")
NODES = (UNKNOWN, Expr("const", "i64", value=130), Expr("wrap_index", "i64", (0, 1)))


def ranges(size: int, *nodes: Expr) -> Ranges:
    return Ranges((*NODES, *nodes), lambda dim: size)


@pytest.mark.parametrize("by", [1, 7, 130, 16900])
@pytest.mark.parametrize("const", [-300, -1, 0, 5, 129])
@pytest.mark.parametrize("coef", [-130, -1, 1, 65, 130, 131, 16900])
def test_what_is_divided_is_quotient_and_rest(by: int, const: int, coef: int) -> None:
    known = ranges(2)
    parts = known.divided(Coord(((AXIS, coef),), const, ((2, 1),)), by)
    if parts is None:
        return
    quotient, rest = parts
    for i in range(2):
        for v in range(130):
            values = [c.const + c.coef(AXIS) * i + sum(k for _, k in c.dynamic) * v for c in (quotient, rest)]
            assert tuple(values) == divmod(const + coef * i + v, by)


def test_parts_that_do_not_overlap_need_no_division() -> None:
    flat = Coord(((AXIS, 16900),), 0, ((2, 130),))
    assert ranges(192).divided(flat, 16900) == (Coord(((AXIS, 1),)), Coord((), 0, ((2, 130),)))
    assert ranges(192).divided(flat.plus(Coord(const=131)), 16900) is None
    assert ranges(192).divided(Coord(dynamic=((0, 1),)), 16900) is None


def test_intervals_end_where_a_type_overflows() -> None:
    large = Expr("const", "i32", value=2**30)
    known = ranges(4, large, Expr("add", "i32", (3, 3)), Expr("cast", "i64", (3,)), Expr("add", "i64", (5, 5)))
    assert known.interval(4) == ANYTHING
    assert known.interval(6) == (2**31, 2**31)
    assert known.interval(2) == (0, 129)
    assert known.interval(0) == ANYTHING


@pytest.mark.parametrize(("start", "low"), [(0, 0), (-130, 0), (-129, None), (1, None)])
def test_an_index_that_counts_from_one_end_is_not_wrapped(start: int, low: int | None) -> None:
    index = Expr("index", "i64", coord=Coord(((AXIS, 1),), start))
    found = ranges(130, index).wrapped(3, 1, lambda at: at)
    assert found == (None if low is None else Coord(((AXIS, 1),), low))


@pytest.mark.parametrize(("op", "expected"), [("quotient", Coord(((AXIS, 1),), 2)), ("modulo", Coord((), 1))])
def test_what_is_divided_without_rest_stays_affine(op: str, expected: Coord) -> None:
    index = Expr("cast", "i32", (3,))
    nodes = (Expr("index", "i64", coord=Coord(((AXIS, 6),), 13)), index, Expr("const", "i32", value=6))
    assert ranges(20, *nodes, Expr(op, "i32", (4, 5))).affine(6, lambda at: at) == expected
    crossing = (Expr("index", "i64", coord=Coord(((AXIS, 3),), 4)), *nodes[1:])
    assert ranges(20, *crossing, Expr(op, "i32", (4, 5))).affine(6, lambda at: at) == Coord(dynamic=((6, 1),))


def test_a_nan_has_no_interval_but_behind_fmax() -> None:
    number = Expr("load", "f32", name="x", dtype="float32")
    low, high = Expr("const", "f32", value=0.0), Expr("const", "f32", value=7.0)
    for top, bottom, interval in (("fmin", "fmax", (0, 7)), ("minimum", "maximum", ANYTHING)):
        nodes = (number, low, high, Expr(bottom, "f32", (3, 4)), Expr(top, "f32", (6, 5)), Expr("cast", "i32", (7,)))
        assert ranges(1, *nodes).interval(8) == interval


@pytest.mark.parametrize(
    ("size", "coef", "type_"),
    [(906 << 20, 1, "int"), (1 << 31, 1, "long long"), (16, 1 << 24, "long long"), (16, 1 << 20, "int")],
)
def test_addresses_of_32_bits_where_every_one_fits(size: int, coef: int, type_: str) -> None:
    read = Expr("load", "f32", name="x", dtype="float32", coord=Coord(dynamic=((2, coef),)))
    kernel = Kernel((*NODES, read), (Store("y", "float32", 3, Coord(((AXIS, 1),)), True),), (), (size,))
    assert index_type(kernel) == type_


def test_addresses_of_unknown_indices_have_64_bits() -> None:
    read = Expr("load", "f32", name="x", dtype="float32", coord=Coord(dynamic=((0, 1),)))
    kernel = Kernel((*NODES, read), (Store("y", "float32", 3, Coord(((AXIS, 1),)), True),), (), (16,))
    assert index_type(kernel) == "long long"
    assert not math.isfinite(Ranges(kernel.nodes, lambda dim: 16).extent(read.coord)[1])
