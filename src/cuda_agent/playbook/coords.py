"""Affine positions over a kernel's loop variables, and the frame (iteration space) of these variables."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from cuda_agent.playbook import ir

#: (root dimension, position of the factor in it).
Dim: TypeAlias = tuple[int, int]


class NeedSplit(Exception):
    """The factor `dim` must be split into (size / inner, inner). With `unroll`, the outer part must be unrolled."""

    def __init__(self, dim: Dim, inner: int, *, unroll: bool = False) -> None:
        self.dim, self.inner, self.unroll = dim, inner, unroll
        super().__init__(f"split {dim} by {inner}")


class NeedRoots(Exception):
    """The frame needs column dimensions of these sizes."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.sizes = sizes
        super().__init__(str(sizes))


class Conflict(Exception):
    """`value` can't be computed in this frame, so another kernel must write it to memory before. `inside` is the
    reduction around it."""

    def __init__(self, value: str, inside: str | None) -> None:
        self.value, self.inside = value, inside
        super().__init__(value)


@dataclass(frozen=True)
class Coord:
    """The position const + Σ coef · dimension + Σ coef · (value of an expression)."""

    terms: tuple[tuple[Dim, int], ...] = ()
    const: int = 0
    dynamic: tuple[tuple[int, int], ...] = ()

    def plus(self, other: "Coord") -> "Coord":
        return Coord(_merge(self.terms, other.terms), self.const + other.const, _merge(self.dynamic, other.dynamic))

    def times(self, factor: int) -> "Coord":
        if factor == 0:
            return Coord()
        return Coord(
            tuple((dim, coef * factor) for dim, coef in self.terms),
            self.const * factor,
            tuple((node, coef * factor) for node, coef in self.dynamic),
        )

    def coef(self, dim: Dim) -> int:
        """Returns the coefficient of a dimension."""
        return next((coef for at, coef in self.terms if at == dim), 0)


#: the position 0.
ORIGIN = Coord()


def _merge(a: tuple[tuple, ...], b: tuple[tuple, ...]) -> tuple:  # type: ignore[type-arg]
    total = dict(a)
    for key, coef in b:
        total[key] = total.get(key, 0) + coef
    return tuple(sorted((key, coef) for key, coef in total.items() if coef))


def address(at: Iterable[Coord], strides: Iterable[int]) -> Coord:
    """Returns the position Σ stride · index of an index along several dimensions."""
    total = ORIGIN
    for coord, stride in zip(at, strides, strict=True):
        total = total.plus(coord.times(stride))
    return total


@dataclass(frozen=True)
class Bound:
    """The condition low ≤ coord < high. A side that always holds is None."""

    coord: Coord
    low: int | None
    high: int | None


@dataclass
class Frame:
    """Root dimensions as lists of factors, outermost first. `rows` are the factors that reductions keep, or None while
    they aren't known."""

    roots: list[list[int]]
    rows: frozenset[Dim] | None = None
    #: whether a scan along the columns is a backward scan; None without a scan.
    scans: bool | None = None
    #: the unrolled factors with their current index.
    fixed: dict[Dim, int] = field(default_factory=dict)

    def dims(self) -> list[Dim]:
        """Returns the iterated factors."""
        every = [(r, p) for r, factors in enumerate(self.roots) for p in range(len(factors)) if factors[p] != 1]
        return [dim for dim in every if dim not in self.fixed]

    def size(self, dim: Dim) -> int:
        return self.roots[dim[0]][dim[1]]

    def sizes(self, dims: Iterable[Dim]) -> int:
        """Returns the number of points of these dimensions."""
        return ir.numel([self.size(dim) for dim in dims])

    def split(self, dim: Dim, inner: int) -> None:
        """Splits a factor into (size / inner, inner)."""
        root, at = dim
        factors = self.roots[root]
        factors[at : at + 1] = [factors[at] // inner, inner]
        self.fixed = {(r, p + 1 if r == root and p > at else p): value for (r, p), value in self.fixed.items()}

    def root(self, index: int) -> Coord:
        """Returns the index along a root dimension."""
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
        """Returns the smallest and the largest value of the affine part."""
        low = high = coord.const
        for dim, coef in coord.terms:
            reach = coef * (self.size(dim) - 1)
            low, high = (low + reach, high) if reach < 0 else (low, high + reach)
        return low, high

    def linear(self, dims: list[Dim]) -> Coord:
        """Returns the row-major position over these dimensions."""
        terms, step = [], 1
        for dim in reversed(dims):
            terms.append((dim, step))
            step *= self.size(dim)
        return Coord(tuple(sorted(terms)))


def is_bijection(frame: Frame, coord: Coord, count: int) -> bool:
    """Returns whether an affine position takes each value of 0 … count-1 once over its dimensions."""
    if coord.const or coord.dynamic:
        return False
    step = 1
    for dim, coef in sorted(coord.terms, key=lambda term: term[1]):
        if coef != step:
            return False
        step *= frame.size(dim)
    return step == count


def matched(shape: tuple[int, ...], other: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """Returns the smallest groups of dimensions of two shapes that hold the same elements, without dimensions of size
    1."""
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
    """Returns the index in `shape` of a row-major position. Raises NeedSplit, or Conflict on `owner` where the index
    isn't affine."""
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
    """Returns the dimension along which a step of `coef` elements moves."""
    for at, (stride, size) in enumerate(zip(strides, shape, strict=True)):
        if size > 1 and stride <= coef < stride * size:
            return at
    return None
