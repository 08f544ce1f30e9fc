"""One kernel, ready to print: its axes, affine addresses over these, expressions and stores.

`inline` computes a group of values in one frame (`frame.py`). `finish` orders the axes and merges adjacent ones where
every address allows it.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cuda_agent.core.graph import reached
from cuda_agent.playbook import ir
from cuda_agent.playbook.coords import Conflict, Coord, Dim, Frame, NeedRoots, NeedSplit, address, delinearise
from cuda_agent.playbook.expression import Expr
from cuda_agent.playbook.frame import Inliner

#: the elements of a row from which its reads are fast in any order of the rows.
_LONG_ROW = 1024
#: the elements of an operand above which it doesn't stay in the cache.
_BEYOND_CACHE = 1 << 22
#: the largest stride, in elements, at which reads of neighbouring threads still share most of each cache line.
_NEAR = 8
_WARP = 32


@dataclass(frozen=True)
class Store:
    """Writes value `name` at address `coord`, at each point of the frame if `full`, otherwise once a row."""

    name: str
    dtype: str
    node: int
    coord: Coord
    full: bool


@dataclass(frozen=True)
class Kernel:
    """Expressions and stores over axes. `rows` and `cols` are the axes' sizes, outermost first. In every Coord, axis k
    is the dimension (k, 0), with the columns counted after the rows. A kernel without reductions has columns only."""

    nodes: tuple[Expr, ...]
    stores: tuple[Store, ...]
    rows: tuple[int, ...]
    cols: tuple[int, ...]

    @property
    def reads(self) -> tuple[str, ...]:
        """The buffers that it reads, in the order of their first use."""
        return tuple(dict.fromkeys(e.name for e in self.nodes if e.op == "load"))

    @property
    def writes(self) -> tuple[tuple[str, str], ...]:
        """(buffer, dtype) of the buffers that it writes, each by one or more stores."""
        return tuple(dict.fromkeys((store.name, store.dtype) for store in self.stores))

    @property
    def reduces(self) -> bool:
        return any(e.op == "reduce" for e in self.nodes)

    @property
    def scans(self) -> bool:
        return any(e.op == "scan" for e in self.nodes)

    @property
    def slides(self) -> bool:
        """Whether it reduces sliding windows."""
        return any(e.op == "reduce" and e.guards for e in self.nodes)

    @property
    def full_stores(self) -> list[Store]:
        """The stores at each point of the frame."""
        return [store for store in self.stores if store.full]

    @property
    def row_stores(self) -> list[Store]:
        """The stores that take place once a row."""
        return [store for store in self.stores if not store.full]

    @property
    def row_axes(self) -> range:
        return range(len(self.rows))

    @property
    def col_axes(self) -> range:
        return range(len(self.rows), len(self.rows) + len(self.cols))

    def dtype(self, buffer: str) -> str:
        return next(e.dtype for e in self.nodes if e.op == "load" and e.name == buffer)

    def axes(self) -> tuple[int, ...]:
        return self.rows + self.cols

    def coefs(self, coord: Coord) -> tuple[int, ...]:
        """Returns an address's coefficient along each axis."""
        return tuple(coord.coef((k, 0)) for k in range(len(self.axes())))

    def full(self) -> frozenset[int]:
        """Returns the nodes whose value varies along the columns."""
        result: set[int] = set()
        first = len(self.rows)
        for at, expr in enumerate(self.nodes):
            if expr.op == "reduce":
                continue
            moving = any(dim[0] >= first for coord in expr.coords for dim, _ in coord.terms)
            if moving or expr.op == "scan" or any(child in result for child in children(expr)):
                result.add(at)
        return frozenset(result)

    def canonical(self) -> "tuple[tuple[Kernel, tuple[str, ...]], dict[str, int]]":
        """Returns a key that is equal for kernels that compute the same from other places, such as the steps of a loop:
        the kernel with its buffers numbered and read from the start. Also returns where the reads of each buffer start,
        in elements."""
        starts: dict[str, int] = {}
        for expr in self.nodes:
            if expr.op == "load":
                starts[expr.name] = min(starts.get(expr.name, expr.coord.const), expr.coord.const)
        reads = {name: f"read{at}" for at, name in enumerate(self.reads)}
        writes = {name: f"written{at}" for at, (name, _) in enumerate(self.writes)}
        nodes = tuple(
            replace(e, name=reads[e.name], coord=e.coord.plus(Coord(const=-starts[e.name]))) if e.op == "load" else e
            for e in self.nodes
        )
        stores = tuple(replace(store, name=writes[store.name]) for store in self.stores)
        # As text, since 0.0 and -0.0 are equal.
        values = tuple(repr(e.value) for e in nodes)
        return (Kernel(nodes, stores, self.rows, self.cols), values), starts


def children(expr: Expr) -> tuple[int, ...]:
    """Returns the nodes that an expression reads: its operands and dynamic indices."""
    return (*expr.args, *(node for coord in expr.coords for node, _ in coord.dynamic))


@dataclass
class Group:
    """The values that one kernel computes, inlined into its frame."""

    frame: Frame
    inliner: Inliner
    stores: list[Store]


def inline(
    first: str,
    values: Mapping[str, ir.Value],
    resident: Mapping[str, tuple[int, ...]],
    extra: Sequence[str] = (),
    *,
    unroll: bool = False,
) -> Group:
    """Computes value `first` and the values `extra` in one frame. With `unroll`, equal pieces of a concatenation get
    stores of their own, which share their reads. Raises Conflict."""
    frame = Frame([[size] for size in values[first].shape])
    for _ in range(64):
        frame.rows = frame.scans = None
        inliner = Inliner(frame, values, resident, unroll=unroll)
        try:
            return Group(frame, inliner, _stores(first, extra, inliner))
        except NeedSplit as need:
            frame.split(need.dim, need.inner)
            if need.unroll:
                frame.fixed[need.dim] = 0
        except NeedRoots as need:
            frame.roots += [[size] for size in need.sizes]
    raise Conflict(first, None)


def _stores(first: str, extra: Sequence[str], inliner: Inliner) -> list[Store]:
    """Returns one store a value, or one for each index of the unrolled factors."""
    frame, values, stores = inliner.frame, inliner.values, []
    fixed = list(frame.fixed)
    for indices in itertools.product(*(range(frame.size(dim)) for dim in fixed)):
        frame.fixed = dict(zip(fixed, indices, strict=True))
        whole = tuple(frame.root(k) for k in range(len(values[first].shape)))
        stores.append(_store(first, inliner, whole))
        for name in extra:
            if fixed and values[name].shape != values[first].shape:
                raise Conflict(name, None)
            stores.append(_store(name, inliner, whole if fixed else _index(name, inliner)))
    return stores


def layout(value: ir.Value, wanted: Sequence[int] | None) -> tuple[int, ...]:
    """Returns the strides of a kernel's result: the captured ones if they are dense."""
    return ir.dense_strides(value.shape, wanted) if wanted is not None else ir.contiguous(value.shape)


def _index(name: str, inliner: Inliner) -> tuple[Coord, ...]:
    """Returns another value's index at each point (or row) of the frame. Raises Conflict where the sizes differ."""
    frame, value = inliner.frame, inliner.values[name]
    dims = frame.dims()
    count = ir.numel(value.shape)
    rows = [dim for dim in dims if frame.rows is not None and dim in frame.rows]
    for group in (dims, rows):
        if frame.sizes(group) == count:
            return tuple(delinearise(frame, frame.linear(group), value.shape, name))
    raise Conflict(name, None)


def _store(name: str, inliner: Inliner, at: tuple[Coord, ...]) -> Store:
    value, frame = inliner.values[name], inliner.frame
    node = inliner.inline(name, at)
    used = {dim for coord in at for dim, _ in coord.terms}
    full = frame.rows is None or used == set(frame.dims()) or not used <= frame.rows
    # `finish` replaces the row-major position by the address, when the layout is known.
    return Store(name, value.dtype, node, address(at, ir.contiguous(value.shape)), full)


def computed_everywhere(name: str, group: Group) -> Store | None:
    """Returns the store of a value that the group computes anyway at every point (or row) of its frame, else None."""
    frame, value = group.frame, group.inliner.values[name]
    every = set(frame.dims())
    for (known, at, guards), node in group.inliner.memo.items():
        if known != name or guards or any(c.dynamic for c in at):
            continue
        position = address(at, ir.contiguous(value.shape))
        used = {dim for dim, _ in position.terms}
        covers = frame.sizes(used) == ir.numel(value.shape) and position.const == 0
        if covers and (used == every or (frame.rows is not None and used == frame.rows)):
            return Store(name, value.dtype, node, position, used == every)
    return None


def finish(group: Group, strides: Mapping[str, tuple[int, ...]]) -> Kernel:
    """Orders and merges the axes. `strides` are the layouts of the stored values."""
    frame = group.frame
    inlined = group.inliner.nodes
    order = sorted(reached((store.node for store in group.stores), lambda at: children(inlined[at])))
    nodes, renumbered = [inlined[at] for at in order], {old: new for new, old in enumerate(order)}
    if not any(expr.op in ("reduce", "scan") for expr in nodes):
        # Nothing needs the reductions that decided the rows: over one element they are their operand, or an index of 0.
        frame.rows = None
    stores = []
    for store in group.stores:
        at = delinearise(frame, store.coord, group.inliner.values[store.name].shape, store.name)
        full = store.full or frame.rows is None
        stores.append(replace(store, coord=address(at, strides[store.name]), node=renumbered[store.node], full=full))
    rows = [dim for dim in frame.dims() if frame.rows is not None and dim in frame.rows]
    cols = [dim for dim in frame.dims() if dim not in rows]
    coords = [s.coord for s in stores] + [c for e in nodes for c in e.coords]
    guide = _guide(stores, nodes, frame, cols)
    rows.sort(key=lambda dim: (-abs(guide.coef(dim)), dim))
    cols.sort(key=lambda dim: (-abs(guide.coef(dim)), dim))
    row_groups, col_groups = (_merged(part, coords, frame) for part in (rows, cols))
    row_groups = _for_reuse(row_groups, cols, nodes, frame)
    mapping: dict[Dim, tuple[Dim, int]] = {}
    sizes = []
    for axis, dims in enumerate(row_groups + col_groups):
        mapping[dims[-1]] = ((axis, 0), 1)
        sizes.append(frame.sizes(dims))
        for dim in dims[:-1]:
            mapping[dim] = ((axis, 0), 0)
    final = [e.mapped(renumbered.__getitem__, lambda coord: _moved(coord, mapping, renumbered)) for e in nodes]
    placed = tuple(replace(s, coord=_moved(s.coord, mapping, None)) for s in stores)
    split = len(row_groups)
    return Kernel(tuple(final), placed, tuple(sizes[:split]), tuple(sizes[split:]))


def _guide(stores: Sequence[Store], nodes: Sequence[Expr], frame: Frame, cols: Sequence[Dim]) -> Coord:
    """Returns the access whose memory order the axes follow: a full store, or the load of the most elements."""
    full = [s.coord for s in stores if s.full]
    loads = [e.coord for e in nodes if e.op == "load"]
    if full and not cols:
        return full[0]

    def moves(coord: Coord) -> int:
        return frame.sizes(dim for dim, _ in coord.terms)

    best = max(loads, key=moves, default=Coord())
    if full and moves(best) <= moves(full[0]) and frame.rows is None:
        return full[0]
    return best if best.terms else (full[0] if full else Coord())


def _merged(dims: Sequence[Dim], coords: Sequence[Coord], frame: Frame) -> list[list[Dim]]:
    """Groups adjacent dimensions that every address steps through as one."""
    groups: list[list[Dim]] = []
    for dim in dims:
        if groups and all(c.coef(groups[-1][-1]) == c.coef(dim) * frame.size(dim) for c in coords):
            groups[-1].append(dim)
        else:
            groups.append([dim])
    return groups


def _for_reuse(rows: list[list[Dim]], cols: Sequence[Dim], nodes: Sequence[Expr], frame: Frame) -> list[list[Dim]]:
    """Orders the row axes so that rows which read the same part of a large operand follow each other. An operand that
    the cache can't hold is otherwise read again for every step along an axis that it lacks."""
    if frame.sizes(cols) < _LONG_ROW:
        return rows
    elements = {e.coord: frame.sizes(dim for dim, _ in e.coord.terms) for e in nodes if e.op == "load"}

    def shared(dims: Sequence[Dim]) -> int:
        lacking = [count for coord, count in elements.items() if not any(coord.coef(dim) for dim in dims)]
        return max((count for count in lacking if count > _BEYOND_CACHE), default=0)

    return sorted(rows, key=shared)


def _moved(coord: Coord, mapping: Mapping[Dim, tuple[Dim, int]], numbers: Mapping[int, int] | None) -> Coord:
    terms = tuple(sorted((mapping[dim][0], coef) for dim, coef in coord.terms if mapping[dim][1]))
    dynamic = tuple((numbers[n] if numbers is not None else n, coef) for n, coef in coord.dynamic)
    return Coord(terms, coord.const, dynamic)


def strided_bytes(work: Kernel) -> int:
    """Returns the bytes of reads and results that neighbouring threads meet at a stride, along the better of the
    innermost axes."""
    sizes, innermost = work.axes(), {len(work.rows) - 1, len(work.rows) + len(work.cols) - 1} - {-1}
    places = [(e.coord, e.dtype) for e in work.nodes if e.op == "load" and not e.coord.dynamic]
    places += [(store.coord, store.dtype) for store in work.stores]

    def along(axis: int) -> int:
        met = [place for place in places if abs(place[0].coef((axis, 0))) > 1]
        return sum(ir.ITEM_BYTES[dtype] * ir.numel([sizes[k] for (k, _), _ in coord.terms]) for coord, dtype in met)

    return min(map(along, innermost), default=0)


def reads_along_columns(work: Kernel) -> bool:
    """Returns whether most bytes are read along the innermost column axis with small strides, forwards or
    backwards."""
    if not work.cols:
        return True
    sizes, rows = work.axes(), len(work.rows)
    # A sliding window is as contiguous along its elements as along the results.
    longer_rows = rows > 0 and work.rows[-1] > work.cols[-1]
    along_cols = along_rows = 0
    for expr in work.nodes:
        if expr.op == "load":
            coefs = work.coefs(expr.coord)
            # A read at a dynamic index fetches another element for each point.
            moves = [s for s, c in zip(sizes, coefs, strict=True) if c or expr.coord.dynamic]
            weight = ir.ITEM_BYTES[expr.dtype] * ir.numel(moves)
            col = abs(coefs[-1]) or math.inf
            row = _step(coefs[:rows], sizes[:rows])
            along_cols += weight * (col <= min(row, _NEAR) and not (col == row and longer_rows))
            along_rows += weight * (row <= min(col, _NEAR) and not (col == row and not longer_rows))
    return along_cols >= along_rows


def _step(coefs: Sequence[int], sizes: Sequence[int]) -> float:
    """Returns the stride at which the threads of a warp, which lie along the innermost of these axes, meet an operand.
    An axis that it lacks, such as the copies of an upsampled element, gives them the same element."""
    threads = 1
    for coef, size in zip(reversed(coefs), reversed(sizes), strict=True):
        if coef:
            return abs(coef)
        threads *= size
        if threads >= _WARP:
            break
    return math.inf
