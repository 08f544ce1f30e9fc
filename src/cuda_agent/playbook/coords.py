"""Positions as affine functions of a kernel's loop variables, and the frame that these belong to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from cuda_agent.playbook import ir

Dim: TypeAlias = tuple[int, int]  # root, position of the factor in it


class NeedSplit(Exception):
    """The factor `dim` must be split into (size / inner, inner)."""

    def __init__(self, dim: Dim, inner: int) -> None:
        self.dim, self.inner = dim, inner
        super().__init__(f"split {dim} by {inner}")


class NeedUnroll(Exception):
    """The factor `dim` must be split into (size / inner, inner), and its outer part written out, not iterated."""

    def __init__(self, dim: Dim, inner: int) -> None:
        self.dim, self.inner = dim, inner
        super().__init__(f"unroll {dim} by {inner}")


class NeedRoots(Exception):
    """The frame needs column dimensions of these sizes."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.sizes = sizes
        super().__init__(str(sizes))


class Conflict(Exception):
    """`value` can't be computed inside this frame and must be in memory before. `inside` is the reduction around it."""

    def __init__(self, value: str, inside: str | None) -> None:
        self.value, self.inside = value, inside
        super().__init__(value)


@dataclass(frozen=True)
class Coord:
    """const + Σ coef · dimension + Σ coef · (value of an expression)."""

    terms: tuple[tuple[Dim, int], ...] = ()
    const: int = 0
    dynamic: tuple[tuple[int, int], ...] = ()

    def plus(self, other: Coord) -> Coord:
        return Coord(_merge(self.terms, other.terms), self.const + other.const, _merge(self.dynamic, other.dynamic))

    def times(self, factor: int) -> Coord:
        if factor == 0:
            return Coord()
        return Coord(
            tuple((dim, coef * factor) for dim, coef in self.terms),
            self.const * factor,
            tuple((node, coef * factor) for node, coef in self.dynamic),
        )

    def coef(self, dim: Dim) -> int:
        return next((coef for at, coef in self.terms if at == dim), 0)


#: position 0
ORIGIN = Coord()


def _merge(a: tuple[tuple, ...], b: tuple[tuple, ...]) -> tuple:  # type: ignore[type-arg]
    total = dict(a)
    for key, coef in b:
        total[key] = total.get(key, 0) + coef
    return tuple(sorted((key, coef) for key, coef in total.items() if coef))


@dataclass(frozen=True)
class Bound:
    """low ≤ coord < high; None where that side always holds."""

    coord: Coord
    low: int | None
    high: int | None


@dataclass
class Frame:
    """Root dimensions as lists of factors, outermost first; which of the factors are rows (None: not known)."""

    roots: list[list[int]]
    rows: frozenset[Dim] | None = None
    #: whether a scan runs along the columns, backwards (True) or forwards (False)
    scans: bool | None = None
    #: factors that aren't iterated: their index at the moment
    fixed: dict[Dim, int] = field(default_factory=dict)

    def dims(self) -> list[Dim]:
        every = [(r, p) for r, factors in enumerate(self.roots) for p in range(len(factors)) if factors[p] != 1]
        return [dim for dim in every if dim not in self.fixed]

    def size(self, dim: Dim) -> int:
        return self.roots[dim[0]][dim[1]]

    def split(self, dim: Dim, inner: int) -> None:
        root, at = dim
        factors = self.roots[root]
        factors[at : at + 1] = [factors[at] // inner, inner]
        self.fixed = {(r, p + 1 if r == root and p > at else p): value for (r, p), value in self.fixed.items()}

    def root(self, index: int) -> Coord:
        terms, const, step = [], 0, 1
        for position in range(len(self.roots[index]) - 1, -1, -1):
            size = self.roots[index][position]
            if (index, position) in self.fixed:
                const += step * self.fixed[index, position]
            elif size != 1:
                terms.append(((index, position), step))
            step *= size
        return Coord(tuple(sorted(terms)), const)

    def extent(self, coord: Coord) -> tuple[int, int]:
        """Smallest and largest value of the affine part."""
        low = high = coord.const
        for dim, coef in coord.terms:
            reach = coef * (self.size(dim) - 1)
            low, high = (low + reach, high) if reach < 0 else (low, high + reach)
        return low, high

    def linear(self, dims: list[Dim]) -> Coord:
        """Row-major position over these dimensions in order."""
        terms, step = [], 1
        for dim in reversed(dims):
            terms.append((dim, step))
            step *= self.size(dim)
        return Coord(tuple(sorted(terms)))


def is_bijection(frame: Frame, coord: Coord, count: int) -> bool:
    """Whether an affine position runs through 0 … count-1 once, over the dimensions that it holds."""
    if coord.const or coord.dynamic:
        return False
    step = 1
    for dim, coef in sorted(coord.terms, key=lambda term: term[1]):
        if coef != step:
            return False
        step *= frame.size(dim)
    return step == count


def matched(shape: tuple[int, ...], other: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """Dimensions of one shape and of its reshape that hold the same elements, as few together as can be; without those
    of size 1, which are index 0."""
    mine, theirs = ([d for d, size in enumerate(sizes) if size != 1] for sizes in (shape, other))
    if 0 in shape:
        return [(mine, theirs)]
    found = []
    while mine:
        left, right = [mine.pop(0)], [theirs.pop(0)]
        while (a := ir.numel([shape[d] for d in left])) != (b := ir.numel([other[d] for d in right])):
            (left if a < b else right).append((mine if a < b else theirs).pop(0))
        found.append((left, right))
    return found


def delinearise(frame: Frame, position: Coord, shape: tuple[int, ...], owner: str) -> list[Coord]:
    """Row-major position -> index in `shape`. Raises NeedSplit, or Conflict on `owner` where it isn't affine."""
    strides = ir.contiguous(shape)
    if position.dynamic:
        raise Conflict(owner, None)
    parts: list[list[tuple[Dim, int]]] = [[] for _ in shape]
    consts, left = [], position.const
    for stride, size in zip(strides, shape, strict=True):
        consts.append(min(left // stride, size - 1) if left >= 0 else 0)
        left -= consts[-1] * stride
    if left:
        raise Conflict(owner, None)
    for dim, coef in position.terms:
        at = _slot(coef, strides, shape)
        if at is None or coef % strides[at]:
            raise Conflict(owner, None)
        top = strides[at] * shape[at]
        if coef * frame.size(dim) > top:
            inner = top // coef
            if top % coef or frame.size(dim) % inner:
                raise Conflict(owner, None)
            raise NeedSplit(dim, inner)
        parts[at].append((dim, coef // strides[at]))
    result = []
    for terms, const, size in zip(parts, consts, shape, strict=True):
        coord = Coord(tuple(sorted(terms)), const)
        low, high = frame.extent(coord)
        if low < 0 or high >= size:
            raise Conflict(owner, None)
        result.append(coord)
    return result


def _slot(coef: int, strides: tuple[int, ...], shape: tuple[int, ...]) -> int | None:
    for at, (stride, size) in enumerate(zip(strides, shape, strict=True)):
        if size > 1 and stride <= coef < stride * size:
            return at
    return None
