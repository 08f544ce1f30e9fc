"""Inlines values: their definitions become expressions over one kernel's loop variables.

A `Frame` is a kernel's iteration space. Its root dimensions are factored finely enough for every reshape to be affine.
Reductions keep some of its dimensions, the rows, and reduce the others, the columns. Inlining restarts with a finer
frame where a reshape needs it (`NeedSplit`). It fails with `Conflict` where a reduction doesn't fit the frame; the
planner then puts that value into memory first.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cuda_agent.playbook import ir
from cuda_agent.playbook.coords import (
    ORIGIN,
    Bound,
    Conflict,
    Coord,
    Frame,
    NeedRoots,
    NeedSplit,
    address,
    delinearise,
    is_bijection,
    matched,
)
from cuda_agent.playbook.expression import Expr
from cuda_agent.playbook.positions import Ranges


@dataclass
class Inliner:
    """Inlines values into one frame. `resident` maps the values in memory to their strides in elements."""

    frame: Frame
    values: Mapping[str, ir.Value]
    resident: Mapping[str, tuple[int, ...]]
    nodes: list[Expr] = field(default_factory=list)
    memo: dict[tuple[str, tuple[Coord, ...], tuple[Bound, ...]], int] = field(default_factory=dict)
    _known: dict[Expr, int] = field(default_factory=dict)
    #: whether a concatenation of few equal pieces may be unrolled.
    unroll: bool = False
    #: the values that are being inlined, the result first.
    _path: list[str] = field(default_factory=list)
    _inside: str | None = None
    _scanning: bool = False

    def add(self, expr: Expr) -> int:
        """Returns the expression's index, the same for equal expressions."""
        at = self._known.get(expr)
        if at is None:
            at = self._known[expr] = len(self.nodes)
            self.nodes.append(expr)
        return at

    def const(self, value: ir.Scalar, type_: str) -> int:
        return self.add(Expr("const", type_, value=value))

    def inline(self, name: str, at: tuple[Coord, ...], guards: tuple[Bound, ...] = ()) -> int:
        """Returns the expression of value `name` at an index. Raises NeedSplit, NeedRoots, Conflict."""
        key = (name, at, guards)
        if key not in self.memo:
            if len(self.nodes) > MOST_NODES and (shared := self._shared()) is not None:
                raise Conflict(shared, self._inside)
            self._path.append(name)
            self.memo[key] = self._inline(self.values[name], at, guards)
            self._path.pop()
        return self.memo[key]

    def _shared(self) -> str | None:
        """Returns the first value after the result that several others read. A kernel that computes such values for
        each reader anew could grow without bound."""
        users = Counter(name for value in self.values.values() for name in ir.operands(value))
        return next((n for n in self._path[1:] if users[n] > 1 and isinstance(self.values[n], _COMPUTED)), None)

    def _inline(self, value: ir.Value, at: tuple[Coord, ...], guards: tuple[Bound, ...]) -> int:
        type_ = ir.compute_type(value.dtype)
        strides = value.strides if isinstance(value, ir.Source) else self.resident.get(value.name)
        if strides is not None:
            return self.add(Expr("load", type_, (), value.name, value.dtype, address(at, strides), guards))
        match value:
            case ir.Pointwise():
                return self._pointwise(value, at, guards)
            case ir.Strided():
                return self.inline(value.arg, tuple(_along(axis, at) for axis in value.axes), guards)
            case ir.Reshape():
                return self.inline(value.arg, self._reshape(value, at), guards)
            case ir.Cat():
                return self._cat(value, at, guards)
            case ir.Pad():
                return self._pad(value, at, guards)
            case ir.Take():
                return self._take(value, at, guards)
            case ir.Iota():
                position = at[value.dim].times(value.step).plus(Coord(const=value.start))
                return self.cast(self.add(Expr("index", "i64", coord=position)), type_)
            case ir.Reduce():
                return self._reduce(value, at)
            case ir.Scan():
                return self._scan(value, at)
        raise TypeError(f"no rule for {value}")

    def cast(self, node: int, type_: str) -> int:
        """Returns an expression's value in a compute type."""
        expr = self.nodes[node]
        if expr.type == type_:
            return node
        if expr.op == "const" and expr.value is not None and type_ in ("f32", "f64"):
            return self.const(float(expr.value), type_)
        return self.add(Expr("cast", type_, (node,)))

    def _pointwise(self, value: ir.Pointwise, at: tuple[Coord, ...], guards: tuple[Bound, ...]) -> int:
        nodes = []
        for position, arg in enumerate(value.args):
            type_ = "b" if value.op == "where" and position == 0 else value.at
            if isinstance(arg, str):
                shape = self.values[arg].shape
                index = tuple(
                    c if size != 1 else Coord() for c, size in zip(at[len(at) - len(shape) :], shape, strict=True)
                )
                node = self.inline(arg, index, guards)
                nodes.append(node if value.op == "cast" else self.cast(node, type_))
            else:
                nodes.append(self.const(arg, type_))
        result = ir.compute_type(value.dtype)
        if value.op in ("cast", "copy"):
            same = isinstance(value.args[0], str) and self.values[value.args[0]].dtype == value.dtype
            return nodes[0] if same else self._narrowed(self.cast(nodes[0], result), value.dtype)
        node = self.cast(self.add(Expr(value.op, "b" if value.op in COMPARISONS else value.at, tuple(nodes))), result)
        return self._narrowed(node, value.dtype)

    def _narrowed(self, node: int, dtype: str) -> int:
        """Returns a value of a narrow integer dtype as it would be read from memory."""
        if dtype not in NARROW or self.nodes[node].op in ("load", *SELECTIONS):
            return node
        return self.add(Expr(f"as_{dtype}", "i32", (node,)))

    def _reshape(self, value: ir.Reshape, at: tuple[Coord, ...]) -> tuple[Coord, ...]:
        shape = self.values[value.arg].shape
        result = [Coord()] * len(shape)
        for mine, theirs in matched(value.shape, shape):
            position = address([at[d] for d in mine], ir.contiguous([value.shape[d] for d in mine]))
            # A position outside of a single dimension needs no division: guards protect it.
            alone = len(theirs) == 1
            parts = (position,) if alone else self._apart(position, tuple(shape[d] for d in theirs), value.arg)
            for d, part in zip(theirs, parts, strict=True):
                result[d] = part
        return tuple(result)

    def _apart(self, position: Coord, shape: tuple[int, ...], owner: str) -> tuple[Coord, ...]:
        try:
            affine = delinearise(self.frame, replace(position, dynamic=()), shape, owner)
        except Conflict:
            return self._divided(position, shape)
        return self._divided(position, shape) if position.dynamic else tuple(affine)

    @property
    def ranges(self) -> Ranges:
        return Ranges(self.nodes, self.frame.size)

    def _divided(self, position: Coord, shape: tuple[int, ...]) -> tuple[Coord, ...]:
        """Returns the index of a row-major position where no factoring of the frame makes it affine. It divides only
        along the dimensions that can't be separated term by term."""
        result, rest, apart = [], position, True
        for stride, size in zip(ir.contiguous(shape), shape, strict=True):
            parts = self.ranges.divided(rest, stride) if apart and size > 1 else None
            apart = apart and (parts is not None or size == 1)
            if parts is not None:
                result.append(parts[0])
                rest = parts[1]
            else:
                result.append(self._quotient(rest, stride, size) if size > 1 else Coord())
        return tuple(result)

    def _quotient(self, position: Coord, stride: int, size: int) -> Coord:
        """Returns position / stride % size as an expression."""
        node = self.add(Expr("index", "i64", coord=position))
        node = self.add(Expr("quotient", "i64", (node, self.const(stride, "i64")))) if stride > 1 else node
        low, high = self.ranges.interval(node)
        if low < 0 or high >= size:
            node = self.add(Expr("modulo", "i64", (node, self.const(size, "i64"))))
        return Coord(dynamic=((node, 1),))

    def _cat(self, value: ir.Cat, at: tuple[Coord, ...], guards: tuple[Bound, ...]) -> int:
        along = at[value.dim]
        self._split_for(along, value.sizes)
        low, high = self.ranges.extent(along)
        start, result = 0, None
        pieces = []
        for arg, size in zip(value.args, value.sizes, strict=True):
            if low < start + size and high >= start:
                pieces.append((arg, start, size))
            start += size
        for arg, start, size in reversed(pieces):
            end = start + size
            bound = self._bound(along, start or None, end if end < sum(value.sizes) else None)
            only = len(pieces) == 1
            index = (*at[: value.dim], along.plus(Coord(const=-start)), *at[value.dim + 1 :])
            node = self.cast(
                self.inline(arg, index, guards if only else (*guards, bound)), ir.compute_type(value.dtype)
            )
            if result is None:
                result = node
            else:
                test = self.add(Expr("inside", "b", guards=(self._bound(along, None, start + size),)))
                result = self.add(Expr("where", self.nodes[node].type, (test, node, result)))
        assert result is not None
        return result

    def _bound(self, coord: Coord, low: int | None, high: int | None) -> Bound:
        """Returns the bound without the terms that can't decide it: 32·a + b < 64 is 32·a < 64 where b < 32. A vector
        of neighbours is then inside or outside as a whole."""
        if coord.const or coord.dynamic:
            return Bound(coord, low, high)
        terms = sorted(coord.terms, key=lambda term: term[1])
        reach = 0
        kept = list(terms)
        for position, (dim, coef) in enumerate(terms):
            reach += coef * (self.frame.size(dim) - 1)
            step = math.gcd(low or 0, high or 0, *(c for _, c in terms[position + 1 :]))
            if coef < 0 or reach >= step:
                break
            kept = terms[position + 1 :]
        return Bound(Coord(tuple(sorted(kept))), low, high)

    def _split_for(self, along: Coord, sizes: tuple[int, ...]) -> None:
        """Makes equal pieces, or pieces with a large common factor, a dimension of their own."""
        piece = math.gcd(*sizes)
        if piece < 8 or along.const or along.dynamic or len(along.terms) != 1:
            return
        dim, coef = along.terms[0]
        size = self.frame.size(dim)
        if coef == 1 and size > piece and size % piece == 0:
            raise NeedSplit(dim, piece, unroll=self.unroll and size // piece <= MOST_UNROLLED)

    def _pad(self, value: ir.Pad, at: tuple[Coord, ...], guards: tuple[Bound, ...]) -> int:
        index, bounds = [], []
        for coord, low, size in zip(at, value.low, value.inner, strict=True):
            shifted = coord.plus(Coord(const=-low))
            least, most = self.ranges.extent(shifted)
            below, above = least < 0, most >= size
            bound = Bound(shifted, 0 if below else None, size if above else None)
            if (below or above) and bound not in guards:
                bounds.append(bound)
            index.append(shifted)
        node = self.inline(value.arg, tuple(index), (*guards, *bounds))
        if not bounds:
            return node
        test = self.add(Expr("inside", "b", guards=tuple(bounds)))
        fill = self.const(value.fill, self.nodes[node].type)
        return self.add(Expr("where", self.nodes[node].type, (test, node, fill)))

    def _take(self, value: ir.Take, at: tuple[Coord, ...], guards: tuple[Bound, ...]) -> int:
        shape = self.values[value.index].shape
        picks = tuple(at[a] if size != 1 else Coord() for a, size in zip(value.index_axes, shape, strict=True))
        node = self.cast(self.inline(value.index, picks, guards), "i64")
        length = self.values[value.arg].shape[value.dim]
        wrap = self.add(Expr("wrap_index" if value.wraps else "plain_index", "i64", (node, self.const(length, "i64"))))
        wrapped = self.ranges.affine(wrap, lambda at: self.cast(at, "i64"))
        index = tuple(wrapped if d == value.dim else at[axis] for d, axis in enumerate(value.axes))
        return self.inline(value.arg, index, guards)

    def _reduce(self, value: ir.Reduce, at: tuple[Coord, ...]) -> int:
        """Inlines a reduction, which decides the frame's rows and columns."""
        frame = self.frame
        position = address(at, ir.contiguous(value.shape))
        used = frozenset(dim for dim, _ in position.terms)
        fits = is_bijection(frame, position, ir.numel(value.shape)) and frame.rows in (None, used)
        if not fits or frame.scans is not None:
            raise Conflict(value.name, self._inside)
        source = self.values[value.arg]
        sizes = tuple(source.shape[d] for d in value.dims)
        columns = [dim for dim in frame.dims() if dim not in used]
        if not columns and ir.numel(sizes) > 1:
            if frame.rows is not None:
                raise Conflict(value.name, self._inside)
            raise NeedRoots(sizes)
        if ir.numel(sizes) != frame.sizes(columns):
            raise Conflict(value.name, self._inside)
        frame.rows = used
        reduced = iter(delinearise(frame, frame.linear(columns), sizes, value.name))
        kept = iter(at)
        index = tuple(next(reduced) if d in value.dims else next(kept) for d in range(len(source.shape)))
        before, self._inside = self._inside, value.name
        body = self.cast(self.inline(value.arg, index), ir.compute_type(value.dtype))
        self._inside = before
        positions = tuple(
            Bound(index[s.dim].times(s.stride).plus(index[s.tap].times(s.dilation)), None, None) for s in value.slides
        )
        return self.add(Expr("reduce", ir.compute_type(value.dtype), (body,), name=value.kind, guards=positions))

    def _scan(self, value: ir.Scan, at: tuple[Coord, ...]) -> int:
        """Inlines a scan. Its dimension is the frame's only column, all others are rows."""
        frame, size = self.frame, value.shape[value.dim]
        kept = ir.resized(value.shape, value.dim)
        position = address((*at[: value.dim], *at[value.dim + 1 :]), ir.contiguous(kept))
        used = frozenset(dim for dim, _ in position.terms)
        columns = [dim for dim in frame.dims() if dim not in used]
        forwards = Coord(((columns[0], 1),)) if len(columns) == 1 else ORIGIN
        backwards = forwards.times(-1).plus(Coord(const=size - 1))
        fits = (
            len(columns) == 1
            and frame.size(columns[0]) == size
            and at[value.dim] in (forwards, backwards)
            and is_bijection(frame, position, ir.numel(kept))
            and frame.scans in (None, at[value.dim] == backwards)
            and (frame.rows is None or (frame.rows == used and frame.scans is not None))
        )
        if not fits or self._scanning:
            raise Conflict(value.name, self._inside)
        frame.rows, frame.scans = used, at[value.dim] == backwards
        before, self._inside, self._scanning = self._inside, value.name, True
        type_ = ir.compute_type(value.dtype)
        body = self.cast(self.inline(value.arg, at), type_)
        self._inside, self._scanning = before, False
        return self.add(Expr("scan", type_, (body,), name=value.kind, value=frame.scans))


def _along(axis: ir.Axis, at: tuple[Coord, ...]) -> Coord:
    """Returns the operand's index along one of its dimensions."""
    moved = Coord() if axis.of is None else at[axis.of].times(axis.step)
    if axis.tap is not None:
        moved = moved.plus(at[axis.tap].times(axis.spacing))
    return moved.plus(Coord(const=axis.offset))


#: a kernel with more expressions than this has its shared values put into memory.
MOST_NODES = 256
#: the values that aren't views.
_COMPUTED = (ir.Pointwise, ir.Cat, ir.Pad, ir.Take, ir.Reduce, ir.Scan)
#: the most pieces of a concatenation that a kernel unrolls.
MOST_UNROLLED = 4
#: integer dtypes that are computed in a wider type.
NARROW = frozenset(("uint8", "int8", "int16"))
#: operators whose result is one of their operands.
SELECTIONS = frozenset(("const", "where", "maximum", "minimum"))
#: operators whose result is a bool in any compute type.
COMPARISONS = frozenset(
    ("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "signbit", "not", "and", "or", "xor")
)
