"""One kernel's work, ready to print: axes, memory accesses as affine addresses over them, expressions, stores.

`pull` evaluates a group of values in one frame (`frame.py`), `finish` merges adjacent axes wherever every address
allows it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cuda_agent.playbook import ir
from cuda_agent.playbook.coords import (
    Bound,
    Conflict,
    Coord,
    Dim,
    Frame,
    NeedRoots,
    NeedSplit,
    NeedUnroll,
    delinearise,
)
from cuda_agent.playbook.expression import Expr
from cuda_agent.playbook.frame import Puller

#: elements; shorter rows are read fast only in the order of memory.
_LONG_ROW = 1024
#: elements; what is smaller stays in the cache whatever the order.
_BEYOND_CACHE = 1 << 22

#: elements between two reads of neighbouring threads that still share most of what they fetch.
_NEAR = 8


@dataclass(frozen=True)
class Store:
    """Value `name` written at `coord` (elements). `full`: once an element of the frame; otherwise once a row."""

    name: str
    dtype: str
    node: int
    coord: Coord
    full: bool


@dataclass(frozen=True)
class Kernel:
    """`rows` and `cols` are axis sizes, outermost first; in every Coord the axis k is the dimension (k, 0), columns
    counted after the rows. A kernel without reductions has columns only."""

    nodes: tuple[Expr, ...]
    stores: tuple[Store, ...]
    rows: tuple[int, ...]
    cols: tuple[int, ...]

    @property
    def reads(self) -> tuple[str, ...]:
        """Buffers that are read, in the order of their first use."""
        return tuple(dict.fromkeys(e.name for e in self.nodes if e.op == "load"))

    @property
    def writes(self) -> tuple[tuple[str, str], ...]:
        """(buffer, dtype) of what is written; a buffer may take several stores."""
        return tuple(dict.fromkeys((store.name, store.dtype) for store in self.stores))

    @property
    def reduces(self) -> bool:
        return any(e.op == "reduce" for e in self.nodes)

    @property
    def scans(self) -> bool:
        return any(e.op == "scan" for e in self.nodes)

    @property
    def slides(self) -> bool:
        """Whether it reduces windows that slide."""
        return any(e.op == "reduce" and e.guards for e in self.nodes)

    def dtype(self, buffer: str) -> str:
        return next(e.dtype for e in self.nodes if e.op == "load" and e.name == buffer)

    def axes(self) -> tuple[int, ...]:
        return self.rows + self.cols

    def coefs(self, coord: Coord) -> tuple[int, ...]:
        return tuple(coord.coef((k, 0)) for k in range(len(self.rows) + len(self.cols)))

    def full(self) -> frozenset[int]:
        """Nodes whose value changes along the columns."""
        result: set[int] = set()
        first = len(self.rows)
        for at, expr in enumerate(self.nodes):
            if expr.op == "reduce":
                continue
            coords = (expr.coord, *(bound.coord for bound in expr.guards))
            moving = any(dim[0] >= first for coord in coords for dim, _ in coord.terms)
            inner = [*expr.args, *(node for coord in coords for node, _ in coord.dynamic)]
            if moving or expr.op == "scan" or any(i in result for i in inner):
                result.add(at)
        return frozenset(result)


def children(expr: Expr) -> tuple[int, ...]:
    """Nodes that an expression needs: operands and dynamic indices."""
    coords = (expr.coord, *(bound.coord for bound in expr.guards))
    return (*expr.args, *(node for coord in coords for node, _ in coord.dynamic))


@dataclass
class Group:
    """Values that one kernel makes, and the expressions found for them."""

    frame: Frame
    puller: Puller
    stores: list[Store]


def pull(
    first: str,
    values: Mapping[str, ir.Value],
    resident: Mapping[str, tuple[int, ...]],
    extra: Sequence[str] = (),
    *,
    unroll: bool = False,
) -> Group:
    """The frame of value `first`, with the values `extra` computed in it too. With `unroll`, equal pieces of a
    concatenation become stores of their own, which share what they read. Raises Conflict."""
    frame = Frame([[size] for size in values[first].shape])
    for _ in range(64):
        frame.rows = frame.scans = None
        puller = Puller(frame, values, resident, unroll=unroll)
        try:
            return Group(frame, puller, _stores(first, extra, puller))
        except NeedSplit as need:
            frame.split(need.dim, need.inner)
        except NeedUnroll as need:
            frame.split(need.dim, need.inner)
            frame.fixed[need.dim] = 0
        except NeedRoots as need:
            frame.roots += [[size] for size in need.sizes]
    raise Conflict(first, None)


def _stores(first: str, extra: Sequence[str], puller: Puller) -> list[Store]:
    """One store a value, or one for each index of the factors that are written out."""
    frame, stores = puller.frame, []
    fixed = list(frame.fixed)
    for indices in itertools.product(*(range(frame.size(dim)) for dim in fixed)):
        frame.fixed = dict(zip(fixed, indices, strict=True))
        whole = tuple(frame.root(k) for k in range(len(puller.values[first].shape)))
        stores.append(_store(first, puller, whole))
        for name in extra:
            same = puller.values[name].shape == puller.values[first].shape
            if fixed and not same:
                raise Conflict(name, None)
            stores.append(_store(name, puller, whole if fixed else _index(name, puller)))
    return stores


def layout(value: ir.Value, wanted: Sequence[int] | None) -> tuple[int, ...]:
    """Strides of a buffer that a kernel makes: the captured ones if dense."""
    return ir.dense_strides(value.shape, wanted) if wanted is not None else ir.contiguous(value.shape)


def _index(name: str, puller: Puller) -> tuple[Coord, ...]:
    """Index of another value at each point (or row) of the frame. Raises Conflict where the sizes differ."""
    frame, value = puller.frame, puller.values[name]
    dims = frame.dims()
    count = ir.numel(value.shape)
    rows = [dim for dim in dims if frame.rows is not None and dim in frame.rows]
    for group in (dims, rows):
        if ir.numel([frame.size(dim) for dim in group]) == count:
            return tuple(delinearise(frame, frame.linear(group), value.shape, name))
    raise Conflict(name, None)


def _store(name: str, puller: Puller, at: tuple[Coord, ...]) -> Store:
    value = puller.values[name]
    frame = puller.frame
    node = puller.pull(name, at)
    used = {dim for coord in at for dim, _ in coord.terms}
    # The address is filled in by `finish`, when the layout is known.
    position = Coord()
    for coord, stride in zip(at, ir.contiguous(value.shape), strict=True):
        position = position.plus(coord.times(stride))
    full = frame.rows is None or used == set(frame.dims()) or not used <= frame.rows
    return Store(name, value.dtype, node, position, full)


def computed_everywhere(name: str, group: Group) -> Store | None:
    """The store of a value that the group happens to compute at every point (or row) of its frame, else None."""
    frame = group.frame
    count = ir.numel(group.puller.values[name].shape)
    dims = frame.dims()
    for (known, at, guards), node in group.puller.memo.items():
        if known != name or guards or any(c.dynamic for c in at):
            continue
        position = Coord()
        for coord, stride in zip(at, ir.contiguous(group.puller.values[name].shape), strict=True):
            position = position.plus(coord.times(stride))
        used = {dim for dim, _ in position.terms}
        covers = ir.numel([frame.size(dim) for dim in used]) == count and position.const == 0
        if covers and used == set(dims):
            return Store(name, group.puller.values[name].dtype, node, position, True)
        if covers and frame.rows is not None and used == frame.rows:
            return Store(name, group.puller.values[name].dtype, node, position, False)
    return None


def finish(group: Group, strides: Mapping[str, tuple[int, ...]]) -> Kernel:
    """Order and merge the axes. `strides` are the layouts of the stored values."""
    frame = group.frame
    nodes, renumbered = _reachable(group.puller.nodes, [store.node for store in group.stores])
    stores = []
    for store in group.stores:
        value = group.puller.values[store.name]
        at = delinearise(frame, store.coord, value.shape, store.name)
        address = Coord()
        for coord, stride in zip(at, strides[store.name], strict=True):
            address = address.plus(coord.times(stride))
        stores.append(replace(store, coord=address, node=renumbered[store.node]))
    rows = [dim for dim in frame.dims() if frame.rows is not None and dim in frame.rows]
    cols = [dim for dim in frame.dims() if dim not in rows]
    coords = [s.coord for s in stores] + [c for e in nodes for c in _coords(e)]
    guide = _guide(stores, nodes, frame, cols)
    rows.sort(key=lambda dim: (-abs(guide.coef(dim)), dim))
    cols.sort(key=lambda dim: (-abs(guide.coef(dim)), dim))
    row_groups, col_groups = (_merged(part, coords, frame) for part in (rows, cols))
    row_groups = _for_reuse(row_groups, cols, nodes, frame)
    mapping: dict[Dim, tuple[Dim, int]] = {}
    sizes = []
    for axis, dims in enumerate(row_groups + col_groups):
        mapping[dims[-1]] = ((axis, 0), 1)
        sizes.append(ir.numel([frame.size(dim) for dim in dims]))
        for dim in dims[:-1]:
            mapping[dim] = ((axis, 0), 0)
    final = [_rewritten(e, mapping, renumbered) for e in nodes]
    placed = tuple(replace(s, coord=_moved(s.coord, mapping, None)) for s in stores)
    split = len(row_groups)
    return Kernel(tuple(final), placed, tuple(sizes[:split]), tuple(sizes[split:]))


def _coords(expr: Expr) -> list[Coord]:
    return [expr.coord, *(bound.coord for bound in expr.guards)]


def _reachable(nodes: Sequence[Expr], roots: Sequence[int]) -> tuple[list[Expr], dict[int, int]]:
    keep: set[int] = set()
    stack = list(roots)
    while stack:
        at = stack.pop()
        if at not in keep:
            keep.add(at)
            stack += children(nodes[at])
    order = sorted(keep)
    return [nodes[at] for at in order], {old: new for new, old in enumerate(order)}


def _guide(stores: Sequence[Store], nodes: Sequence[Expr], frame: Frame, cols: Sequence[Dim]) -> Coord:
    """The access whose memory order the axes follow: a full store, else the load that moves most."""
    full = [s.coord for s in stores if s.full]
    loads = [e.coord for e in nodes if e.op == "load"]
    if full and not cols:
        return full[0]

    def moves(coord: Coord) -> int:
        return ir.numel([frame.size(dim) for dim, _ in coord.terms])

    best = max(loads, key=moves, default=Coord())
    if full and moves(best) <= moves(full[0]) and frame.rows is None:
        return full[0]
    return best if best.terms else (full[0] if full else Coord())


def _merged(dims: Sequence[Dim], coords: Sequence[Coord], frame: Frame) -> list[list[Dim]]:
    """Adjacent dimensions that every address steps through as one."""
    groups: list[list[Dim]] = []
    for dim in dims:
        if groups and all(c.coef(groups[-1][-1]) == c.coef(dim) * frame.size(dim) for c in coords):
            groups[-1].append(dim)
        else:
            groups.append([dim])
    return groups


def _for_reuse(rows: list[list[Dim]], cols: Sequence[Dim], nodes: Sequence[Expr], frame: Frame) -> list[list[Dim]]:
    """Row axes ordered so that rows which read the same part of a large operand come one after the other: an operand
    beyond the cache is otherwise read again for every step along an axis that it lacks."""
    if ir.numel([frame.size(dim) for dim in cols]) < _LONG_ROW:
        return rows
    elements: dict[Coord, int] = {}
    for expr in nodes:
        if expr.op == "load":
            elements[expr.coord] = ir.numel([frame.size(dim) for dim, _ in expr.coord.terms])

    def shared(dims: Sequence[Dim]) -> int:
        lacking = [count for coord, count in elements.items() if not any(coord.coef(dim) for dim in dims)]
        return max((count for count in lacking if count > _BEYOND_CACHE), default=0)

    return sorted(rows, key=shared)


def _moved(coord: Coord, mapping: Mapping[Dim, tuple[Dim, int]], numbers: Mapping[int, int] | None) -> Coord:
    terms = tuple(sorted((mapping[dim][0], coef) for dim, coef in coord.terms if mapping[dim][1]))
    dynamic = tuple((numbers[n] if numbers is not None else n, coef) for n, coef in coord.dynamic)
    return Coord(terms, coord.const, dynamic)


def _rewritten(expr: Expr, mapping: Mapping[Dim, tuple[Dim, int]], numbers: Mapping[int, int]) -> Expr:
    guards = tuple(Bound(_moved(b.coord, mapping, numbers), b.low, b.high) for b in expr.guards)
    return replace(
        expr, args=tuple(numbers[a] for a in expr.args), coord=_moved(expr.coord, mapping, numbers), guards=guards
    )


def reads_along_columns(work: Kernel) -> bool:
    """Whether most bytes are read with the innermost column axis contiguous, forwards or backwards, or in small
    steps."""
    if not work.cols:
        return True
    last, rows = len(work.rows) + len(work.cols) - 1, len(work.rows)
    # A window that slides is as contiguous along its elements as along the results.
    longer_rows = rows > 0 and work.rows[-1] > work.cols[-1]
    along_cols = along_rows = 0
    for expr in work.nodes:
        if expr.op == "load":
            coefs = work.coefs(expr.coord)
            # What is looked up by an index is another element for each.
            moves = [s for s, c in zip(work.axes(), coefs, strict=True) if c or expr.coord.dynamic]
            weight = ir.ITEM_BYTES[expr.dtype] * ir.numel(moves)
            col, row = abs(coefs[last]) or math.inf, (abs(coefs[rows - 1]) if rows > 0 else 0) or math.inf
            along_cols += weight * (col <= min(row, _NEAR) and not (col == row and longer_rows))
            along_rows += weight * (row <= min(col, _NEAR) and not (col == row and not longer_rows))
    return along_cols >= along_rows
