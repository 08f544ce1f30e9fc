"""Interval analysis of integer expressions, and from it affine forms of positions that need no division."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from cuda_agent.playbook.coords import Coord, Dim
from cuda_agent.playbook.expression import INDEXING, Expr

#: the smallest and the largest value, integers or infinite.
Interval: TypeAlias = tuple[float, float]

ANYTHING: Interval = (-math.inf, math.inf)
_LIMITS: dict[str, Interval] = {"i32": (-(2**31), 2**31 - 1), "i64": (-(2**63), 2**63 - 1), "b": (0, 1)}
#: operators that return one of their operands.
_SELECTED = {"minimum": min, "maximum": max, "fmin": min, "fmax": max}


@dataclass(frozen=True)
class Ranges:
    """The intervals of expressions over dimensions of the given sizes."""

    nodes: Sequence[Expr]
    size: Callable[[Dim], int]
    _known: dict[int, Interval] = field(default_factory=dict, compare=False)

    def extent(self, coord: Coord) -> Interval:
        """Returns the smallest and the largest value of a position."""
        low: float = coord.const
        high: float = coord.const
        reaches = [(coef, (0.0, float(self.size(dim) - 1))) for dim, coef in coord.terms]
        reaches += [(coef, self.interval(node)) for node, coef in coord.dynamic]
        for coef, values in reaches:
            ends = sorted(_product(coef, end) for end in values)
            low, high = low + ends[0], high + ends[1]
        return low, high

    def interval(self, at: int) -> Interval:
        """Returns the interval of an expression, `ANYTHING` where it isn't known or its type may overflow."""
        if at not in self._known:
            expr = self.nodes[at]
            found = self._interval(expr)
            low, high = _LIMITS.get(expr.type, ANYTHING)
            self._known[at] = found if low <= found[0] and found[1] <= high else ANYTHING
        return self._known[at]

    def _interval(self, expr: Expr) -> Interval:
        if expr.op == "const" and expr.value is not None:
            value = float(expr.value)
            return ANYTHING if math.isnan(value) else (value, value)
        if expr.op == "index":
            return self.extent(expr.coord)
        if expr.op == "where":
            (low, high), (other_low, other_high) = (self.interval(a) for a in expr.args[1:])
            return min(low, other_low), max(high, other_high)
        if expr.op == "cast" and expr.type in _LIMITS:
            # It rounds towards zero.
            low, high = (math.trunc(end) if math.isfinite(end) else end for end in self.interval(expr.args[0]))
            return low, high
        # minimum and maximum propagate NaN, so their float results may be no integers. fmin and fmax drop NaN.
        if expr.op in ("fmin", "fmax") or (expr.op in ("minimum", "maximum") and expr.type in ("i32", "i64")):
            pick = _SELECTED[expr.op]
            (low, high), (other_low, other_high) = (self.interval(a) for a in expr.args)
            return pick(low, other_low), pick(high, other_high)
        if expr.type not in ("i32", "i64"):
            return ANYTHING
        return self._arithmetic(expr)

    def _arithmetic(self, expr: Expr) -> Interval:
        if expr.op not in (*INDEXING, "quotient", "modulo", "add", "sub", "mul"):
            return ANYTHING
        (low, high), (by_low, by_high) = (self.interval(a) for a in expr.args)
        if expr.op == "add":
            return low + by_low, high + by_high
        if expr.op == "sub":
            return low - by_high, high - by_low
        if expr.op == "mul":
            ends = [_product(a, b) for a in (low, high) for b in (by_low, by_high)]
            return min(ends), max(ends)
        if by_low != by_high or by_low < 1 or (low < 0 and expr.op not in INDEXING):
            return ANYTHING
        if expr.op == "quotient":
            return low // by_low, high // by_low if math.isfinite(high) else high
        # torch requires that an index lies within the dimension.
        return 0, by_low - 1 if expr.op in INDEXING else min(high, by_low - 1)

    def affine(self, at: int, widened: Callable[[int], int]) -> Coord:
        """Returns an integer expression as a position. Sums and multiples become affine terms where nothing overflows.
        Other expressions stay dynamic, cast to 64 bits by `widened`."""
        expr = self.nodes[at]
        if expr.op == "index":
            return expr.coord
        if expr.op == "const" and expr.value is not None:
            return Coord(const=int(expr.value))
        if expr.op == "cast" and self.nodes[expr.args[0]].type in ("i32", "i64"):
            known = self.interval(expr.args[0])
            if expr.type == "i64" or known != ANYTHING:
                return self.affine(expr.args[0], widened)
        if self.interval(at) != ANYTHING:
            if expr.op in INDEXING:
                return self.wrapped(expr.args[0], expr.args[1], widened) or Coord(dynamic=((widened(at), 1),))
            if expr.op in ("add", "sub"):
                first, second = (self.affine(a, widened) for a in expr.args)
                return first.plus(second.times(1 if expr.op == "add" else -1))
            if expr.op == "mul":
                for factor, other in (expr.args, expr.args[::-1]):
                    value = self.nodes[factor].value
                    if self.nodes[factor].op == "const" and value is not None:
                        return self.affine(other, widened).times(int(value))
            if expr.op in ("quotient", "modulo"):
                parts = self.divided(self.affine(expr.args[0], widened), int(self.interval(expr.args[1])[0]))
                if parts is not None:
                    return parts[expr.op == "modulo"]
        return Coord(dynamic=((widened(at), 1),))

    def wrapped(self, at: int, length: int, widened: Callable[[int], int]) -> Coord | None:
        """Returns the position of an index whose sign is known: it counts from the start or from the end of a length.
        Returns None where the sign isn't known."""
        (low, high), (size, _) = self.interval(at), self.interval(length)
        if low >= 0 and high < size:
            return self.affine(at, widened)
        if low >= -size and high < 0:
            return self.affine(at, widened).plus(Coord(const=int(size)))
        return None

    def divided(self, position: Coord, by: int) -> tuple[Coord, Coord] | None:
        """Returns quotient and remainder as positions, or None where the terms' remainders may add up to `by`."""
        quotient = Coord(
            tuple((dim, coef // by) for dim, coef in position.terms if coef // by),
            position.const // by,
            tuple((node, coef // by) for node, coef in position.dynamic if coef // by),
        )
        rest = position.plus(quotient.times(-by))
        low, high = self.extent(rest)
        if not (math.isfinite(low) and math.isfinite(high)) or low // by != high // by:
            return None
        carried = Coord(const=int(low // by))
        return quotient.plus(carried), rest.plus(carried.times(-by))


def _product(a: float, b: float) -> float:
    """Returns a · b, with zero for zero times infinity."""
    return 0 if a == 0 or b == 0 else a * b
