"""Lowers pooling and depthwise convolutions to reductions over sliding windows.

The windows are a view with one more dimension for each direction of several taps. The reduction is over these.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cuda_agent.core.graph import Node
from cuda_agent.playbook import ir
from cuda_agent.playbook.lower import Builder, CantLower
from cuda_agent.playbook.operators.reductions import mean_of, shared
from cuda_agent.playbook.skills.shared.geometry import MOST_TAPS, read

#: kind of reduction -> the operator that joins two elements.
_JOINED = {"max": "maximum", "min": "minimum", "sum": "add"}
#: the most taps of a window that becomes an element-wise chain.
_MOST_WRITTEN_OUT = 9
#: the most windows that share an element, where another reduction reads the chain, and where only the caches hold
#: shared elements.
_MOST_SHARED, _MOST_CACHED = 2.5, 4.0
#: elements from which disjoint windows are reduced as rows.
_WIDE = 32
#: the most elements of windows of unequal sizes that aren't a reduction.
_MOST_UNEQUAL = 8


@dataclass(frozen=True)
class Direction:
    """One spatial dimension: `result` windows of `taps` elements. The first window begins `before` elements ahead of
    x."""

    result: int
    taps: int
    stride: int = 1
    dilation: int = 1
    before: int = 0

    @property
    def reach(self) -> int:
        """The number of positions from the first window's first element to the last window's last one."""
        return (self.result - 1) * self.stride + (self.taps - 1) * self.dilation + 1


@dataclass(frozen=True)
class _Windows:
    """The view [lead…, results…, taps…], with taps of directions with several taps only, and how it slides."""

    value: str
    dims: tuple[int, ...]
    slides: tuple[ir.Slide, ...]


def _windows(b: Builder, x: str, directions: Sequence[Direction], fill: float) -> _Windows:
    """Adds the view of windows over the last dimensions of x, which `fill` surrounds."""
    lead, full = b.rank(x) - len(directions), b.shape_of(x)
    inner = full[lead:]
    if any(d.before or d.reach > size for d, size in zip(directions, inner, strict=True)):
        shape = (*full[:lead], *(max(d.reach, size) for d, size in zip(directions, inner, strict=True)))
        x = b.pad(shape, x, (*(0,) * lead, *(d.before for d in directions)), fill)
    axes: list[ir.Axis] = [ir.Axis(d) for d in range(lead)]
    slides: list[ir.Slide] = []
    for at, d in enumerate(directions, lead):
        tap = len(full) + len(slides) if d.taps > 1 else None
        axes.append(ir.Axis(at, d.stride, 0, tap, d.dilation))
        if tap is not None:
            slides.append(ir.Slide(at, tap, d.stride, d.dilation))
    results = tuple(d.result for d in directions)
    shape = (*full[:lead], *results, *(d.taps for d in directions if d.taps > 1))
    view = b.view(b.fresh("windows"), shape, x, axes)
    return _Windows(view, tuple(slide.tap for slide in slides), tuple(slides))


def _reduced(b: Builder, kind: str, x: str, directions: Sequence[Direction], fill: float, dtype: str) -> str:
    """Adds x reduced over its windows. Wide disjoint windows are reduced as rows. Other windows of many elements are
    reduced direction by direction."""
    if _are_rows(b, x, directions):
        lead = b.values[x].shape[: -len(directions)]
        shape = (*lead, *(n for d in directions for n in (d.result, d.taps)))
        return b.reduce(kind, b.reshape(x, shape), range(len(lead) + 1, len(shape), 2), dtype=dtype)
    if ir.numel([d.taps for d in directions]) > MOST_TAPS and sum(d.taps > 1 for d in directions) > 1:
        sizes = b.values[x].shape[-len(directions) :]
        for at in reversed(range(len(directions))):
            alone = [d if k == at else Direction(sizes[k], 1) for k, d in enumerate(directions)]
            x = _reduced(b, kind, x, alone, fill, dtype)
            sizes = b.values[x].shape[-len(directions) :]
        return x
    windows = _windows(b, x, directions, fill)
    if not windows.dims:
        return b.cast(windows.value, dtype)
    return b.reduce(kind, windows.value, windows.dims, dtype=dtype, slides=windows.slides)


def _are_rows(b: Builder, x: str, directions: Sequence[Direction]) -> bool:
    """Returns whether the windows are wide, disjoint, and cover x."""
    sizes = b.values[x].shape[-len(directions) :]
    return ir.numel([d.taps for d in directions]) >= _WIDE and all(
        d.stride == d.taps and d.dilation == 1 and d.result * d.taps == size and not d.before
        for d, size in zip(directions, sizes, strict=True)
    )


def write_out(b: Builder, name: str, inside: str | None = None) -> bool:
    """Makes a window's reduction an element-wise chain over its taps, so that a kernel can fuse it instead of reading
    it from memory. `inside` is the reduction that reads it, once. Returns False where a window has many taps, or an
    element is in many windows."""
    value = b.values[name]
    if not isinstance(value, ir.Reduce) or not value.slides or value.kind not in _JOINED:
        return False
    sizes = b.values[value.arg].shape
    shared = math.prod(max(1.0, sizes[slide.tap] / slide.stride) for slide in value.slides)
    most = _MOST_CACHED if inside is None else _MOST_SHARED
    if ir.numel([sizes[d] for d in value.dims]) > _MOST_WRITTEN_OUT or shared > most:
        return False
    if inside is not None and not _read_once(b, name, inside):
        return False
    kept = iter(range(len(value.shape)))
    of = [None if d in value.dims else next(kept) for d in range(len(sizes))]
    taps: list[str] = []
    for indices in itertools.product(*(range(sizes[d]) for d in value.dims)):
        offsets = dict(zip(value.dims, indices, strict=True))
        axes = [ir.Axis(at, 1, offsets.get(d, 0)) for d, at in enumerate(of)]
        taps.append(b.cast(b.view(b.fresh("tap"), value.shape, value.arg, axes), value.dtype))
    total, *others, last = taps
    for tap in others:
        total = b.pointwise(_JOINED[value.kind], total, tap, dtype=value.dtype)
    b.pointwise(_JOINED[value.kind], total, last, dtype=value.dtype, name=name)
    return True


def _read_once(b: Builder, name: str, by: str) -> bool:
    """Returns whether a chain of values, each with a single reader, leads to `by`."""
    at = name
    while at != by:
        readers = [other.name for other in b.values.values() if at in ir.operands(other)]
        if len(readers) != 1:
            return False
        (at,) = readers
    return True


def _numbers(value: Any, count: int) -> list[int]:
    items = list(value) if isinstance(value, list | tuple) else [value]
    return [int(item) for item in (items * count if len(items) == 1 else items)]


def _pool_directions(b: Builder, node: Node, dilated: bool) -> list[Direction]:
    """Returns the directions of max_pool(x, kernel, stride, padding, dilation, ceil) or of avg_pool, which has no
    dilation."""
    count = _dimensions(node)
    kernel = _numbers(b.arg(node, 1, "kernel_size"), count)
    stride = _numbers(b.arg(node, 2, "stride") or kernel, count)
    padding = _numbers(b.arg(node, 3, "padding", 0), count)
    dilation = _numbers(b.arg(node, 4, "dilation", 1), count) if dilated else [1] * count
    results = b.out(node).shape[-count:]
    return [Direction(*numbers) for numbers in zip(results, kernel, stride, dilation, padding, strict=True)]


def _dimensions(node: Node) -> int:
    return int(node.op.split("pool")[1][0])


def _adaptive(b: Builder, node: Node, kind: str) -> tuple[str, list[Direction]]:
    """Returns the operand and the windows of an adaptive pooling. Windows are regular where the sizes divide. In the
    other directions, the operand is already reduced to one element a window."""
    x, count = b.arg(node, 0), _dimensions(node)
    sizes, results = b.values[x].shape[-count:], b.out(node).shape[-count:]
    directions = []
    for at, (size, result) in enumerate(zip(sizes, results, strict=True), len(b.values[x].shape) - count):
        if size % result:
            x = _unequal(b, kind, x, at, result)
        step = size // result if size % result == 0 else 1
        directions.append(Direction(result, step, step))
    return x, directions


def _unequal(b: Builder, kind: str, x: str, dim: int, result: int) -> str:
    """Adds the reduction over windows from ⌊i · size / result⌋ up to ⌈(i + 1) · size / result⌉ along one dimension.
    Small windows are element-wise chains."""
    shape, inner, whole = b.shape_of(x), b.inner(x), b.typed("int32")
    size = shape[dim]
    taps = max(-(-(i + 1) * size // result) - i * size // result for i in range(result))
    after = [1] * (len(shape) - dim - 1)

    def bounds(windows: tuple[int, ...]) -> tuple[str, str, str]:
        """Adds first index, last index and length of the windows, for a shape with the windows as dimension 0."""
        scaled = b.iota("scaled", windows, 0, 0, size)
        start = whole("floordiv", scaled, result)
        end = whole("floordiv", whole("add", scaled, size + result - 1), result)
        length = whole("sub", end, start)
        return start, whole("sub", end, 1), length

    def taken(place: str, last: str) -> str:
        """Adds the elements at these indices. Elements after the last have no effect."""
        near = whole("minimum", place, last)
        value = b.cast(b.take(x, dim, near, name=b.fresh("taken")), inner)
        if kind != "sum":
            return value
        inside = b.reshape(b.test("le", place, last, at="i32"), (*b.shape_of(place), *after))
        return b.pointwise("where", inside, value, 0.0, dtype=inner)

    start, last, length = bounds((result,))
    if taps > _MOST_UNEQUAL:
        first, behind, _ = bounds((result, taps))
        tap = b.iota("tap", (result, taps), 1)
        total = b.reduce(kind, taken(whole("add", first, tap), behind), (dim + 1,), dtype=inner)
    else:
        total = taken(start, last)
        for number in range(1, taps):
            value = taken(whole("add", start, number), last)
            total = b.pointwise(_JOINED[kind], total, value, dtype=inner)
    if kind == "sum":
        total = b.pointwise("div", total, b.reshape(b.cast(length, inner), (result, *after)), dtype=inner)
    return total


def _is_whole(b: Builder, x: str, directions: Sequence[Direction]) -> bool:
    """Returns whether there is a single window over all elements."""
    sizes = b.values[x].shape[-len(directions) :]
    return all(d.result == 1 and d.taps == size and not d.before for d, size in zip(directions, sizes, strict=True))


def _check_floating(b: Builder, x: str) -> None:
    if b.values[x].dtype not in ir.FLOAT_DTYPES:
        raise CantLower("pools integers")


def _max(b: Builder, node: Node, x: str, directions: Sequence[Direction]) -> str | tuple[str | None, ...]:
    """Adds the maxima. Their indices aren't available."""
    _check_floating(b, x)
    dtype = b.values[x].dtype
    if _is_whole(b, x, directions):
        result = b.reduce("max", x, range(b.rank(x) - len(directions), b.rank(x)), dtype=dtype, keep=True)
    else:
        result = _reduced(b, "max", x, directions, float("-inf"), dtype)
    return b.finish(node, result) if len(node.outputs) == 1 else (result, None)


def max_pool(b: Builder, node: Node) -> str | tuple[str | None, ...]:
    """Lowers max_pool and max_pool_with_indices."""
    return _max(b, node, b.arg(node, 0), _pool_directions(b, node, dilated=True))


def adaptive_max_pool(b: Builder, node: Node) -> str | tuple[str | None, ...]:
    return _max(b, node, *_adaptive(b, node, "max"))


def _average(b: Builder, node: Node, x: str, directions: Sequence[Direction], divisor: str | float) -> str:
    _check_floating(b, x)
    if _is_whole(b, x, directions) and divisor == ir.numel([d.taps for d in directions]):
        return b.finish(node, mean_of(b, x, range(b.rank(x) - len(directions), b.rank(x)), keep=True))
    inner = b.inner(x)
    total = _reduced(b, "sum", x, directions, 0.0, inner)
    if isinstance(divisor, str):
        return b.finish(node, b.pointwise("div", total, divisor, dtype=inner))
    return b.finish(node, shared(b, total, divisor, inner))


def avg_pool(b: Builder, node: Node) -> str:
    """Lowers avg_pool. The divisor is a given number, or the window's size with or without padding."""
    directions = _pool_directions(b, node, dilated=False)
    with_padding, given = b.arg(node, 5, "count_include_pad", True), b.arg(node, 6, "divisor_override")
    divisor = float(given) if given else _counts(b, node, directions, bool(with_padding))
    return _average(b, node, b.arg(node, 0), directions, divisor)


def _counts(b: Builder, node: Node, directions: Sequence[Direction], with_padding: bool) -> str | float:
    """Returns the number of elements that each window counts: a number where all are equal, else a value [results…]."""
    sizes = b.values[b.arg(node, 0)].shape[-len(directions) :]
    results = tuple(d.result for d in directions)
    constant, varying, whole = 1, None, b.typed("int32")
    for at, (d, size) in enumerate(zip(directions, sizes, strict=True)):
        low, high = (-d.before, size + d.before) if with_padding else (0, size)
        starts = [index * d.stride - d.before for index in range(d.result)]
        counts = {min(start + d.taps, high) - max(start, low) for start in starts}
        if len(counts) == 1:
            constant *= counts.pop()
            continue
        start = b.iota("start", results, at, -d.before, d.stride)
        end = whole("minimum", whole("add", start, d.taps), high)
        part = whole("sub", end, whole("maximum", start, low))
        varying = part if varying is None else whole("mul", varying, part)
    return float(constant) if varying is None else whole("mul", varying, constant)


def adaptive_avg_pool(b: Builder, node: Node) -> str:
    x, directions = _adaptive(b, node, "sum")
    return _average(b, node, x, directions, float(ir.numel([d.taps for d in directions])))


def depthwise(b: Builder, node: Node) -> str:
    """Lowers a depthwise convolution of few taps, in which output channel c · m + k reads channel c."""
    x, weight, bias = b.arg(node, 0), b.arg(node, 1), b.arg(node, 2, "bias")
    call = read(b, node)
    if call is None or not call.is_stencil:
        raise CantLower("takes several channels together, or many taps, or another type than 16- and 32-bit floats")
    inner = b.internal(call.result.dtype)
    directions = [Direction(a.result, a.filter, a.stride, a.dilation, a.before) for a in call.axes]
    count, multiple = len(directions), call.out_channels // call.groups
    windows = _windows(b, x, directions, 0.0)
    body, shift = windows.value, 0
    view, taps = b.shape_of(body), [*[1] * count, *(d.taps for d in directions if d.taps > 1)]
    channel = b.rank(x) - count - 1
    factors = b.reshape(weight, (call.groups, multiple, *taps))
    if multiple > 1:
        shift = 1
        body = b.reshape(body, ir.resized(view, channel, view[channel], 1))
    else:
        factors = b.reshape(weight, (call.groups, *taps))
    product = b.pointwise("mul", body, factors, dtype=inner)
    slides = tuple(ir.Slide(s.dim + shift, s.tap + shift, s.stride, s.dilation) for s in windows.slides)
    dims = tuple(dim + shift for dim in windows.dims)
    total = b.reduce("sum", product, dims, dtype=inner, slides=slides) if dims else product
    if multiple > 1:
        total = b.reshape(total, call.result.shape)
    if bias is not None:
        total = b.pointwise("add", total, b.reshape(bias, (call.out_channels, *[1] * count)), dtype=inner)
    return b.finish(node, total)
