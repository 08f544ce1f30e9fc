"""Reductions over small sliding windows: pooling, and convolutions that take every channel by itself.

A window is a view with one dimension more for each direction in which it slides, and a reduction over these.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cuda_agent.core.graph import Node
from cuda_agent.playbook import ir
from cuda_agent.playbook.lower import Builder, CantLower, Lowering
from cuda_agent.playbook.operators.reductions import mean_of
from cuda_agent.playbook.operators.views import take_along
from cuda_agent.playbook.skills.shared.geometry import MOST_TAPS, read

#: what joins the elements of a window; so many of them, and so many windows of one element, at the most: where another
#: reduction reads the window, and where nothing but the caches keeps what windows share.
_JOINED = {"max": "maximum", "min": "minimum", "sum": "add"}
_MOST_WRITTEN_OUT, _MOST_SHARED, _MOST_CACHED = 9, 2.5, 4.0
#: elements of a window from which it is a row of its own, where nothing is in two windows.
_WIDE = 32
#: elements of a window that is none of many equal ones, above which it is a reduction.
_MOST_UNEQUAL = 8


@dataclass(frozen=True)
class Direction:
    """One spatial dimension: `result` windows of `taps` elements, the first of them `before` elements ahead of x."""

    result: int
    taps: int
    stride: int = 1
    dilation: int = 1
    before: int = 0

    @property
    def reach(self) -> int:
        """Positions from the first window's first element to the last window's last one."""
        return (self.result - 1) * self.stride + (self.taps - 1) * self.dilation + 1


@dataclass(frozen=True)
class _Windows:
    """The view [lead…, results…, taps…] (only of directions with several taps), and how it slides."""

    value: str
    dims: tuple[int, ...]
    slides: tuple[ir.Slide, ...]


def _windows(b: Builder, x: str, directions: Sequence[Direction], fill: float) -> _Windows:
    """Windows of the last dimensions of x; `fill` is what lies outside of it."""
    source = b.values[x]
    lead = len(source.shape) - len(directions)
    inner = source.shape[lead:]
    if any(d.before or d.reach > size for d, size in zip(directions, inner, strict=True)):
        shape = (*source.shape[:lead], *(max(d.reach, size) for d, size in zip(directions, inner, strict=True)))
        low = (*(0,) * lead, *(d.before for d in directions))
        x = b.add(ir.Pad(b.fresh("padded"), shape, source.dtype, x, low, source.shape, fill))
    axes: list[ir.Axis] = [ir.Axis(d) for d in range(lead)]
    slides: list[ir.Slide] = []
    for at, d in enumerate(directions, lead):
        tap = len(source.shape) + len(slides) if d.taps > 1 else None
        axes.append(ir.Axis(at, d.stride, 0, tap, d.dilation))
        if tap is not None:
            slides.append(ir.Slide(at, tap, d.stride, d.dilation))
    results = tuple(d.result for d in directions)
    shape = (*source.shape[:lead], *results, *(d.taps for d in directions if d.taps > 1))
    view = b.add(ir.Strided(b.fresh("windows"), shape, source.dtype, x, tuple(axes)))
    return _Windows(view, tuple(slide.tap for slide in slides), tuple(slides))


def _reduced(b: Builder, kind: str, x: str, directions: Sequence[Direction], fill: float, dtype: str) -> str:
    """x reduced over its windows: wide ones side by side as rows of their own, others direction by direction where one
    window holds many elements."""
    if _are_rows(b, x, directions):
        lead = b.values[x].shape[: -len(directions)]
        shape = (*lead, *(n for d in directions for n in (d.result, d.taps)))
        return b.reduce(kind, b.reshape(x, shape), range(len(lead) + 1, len(shape), 2), dtype=dtype)
    if ir.numel([d.taps for d in directions]) > MOST_TAPS and sum(d.taps > 1 for d in directions) > 1:
        sizes = b.values[x].shape[-len(directions) :]
        for at in reversed(range(len(directions))):
            alone = [
                d if k == at else Direction(size, 1) for k, (d, size) in enumerate(zip(directions, sizes, strict=True))
            ]
            x = _reduced(b, kind, x, alone, fill, dtype)
            sizes = b.values[x].shape[-len(directions) :]
        return x
    windows = _windows(b, x, directions, fill)
    if not windows.dims:
        return b.cast(windows.value, dtype)
    return b.reduce(kind, windows.value, windows.dims, dtype=dtype, slides=windows.slides)


def _are_rows(b: Builder, x: str, directions: Sequence[Direction]) -> bool:
    """Whether wide windows lie side by side and leave nothing out."""
    sizes = b.values[x].shape[-len(directions) :]
    return ir.numel([d.taps for d in directions]) >= _WIDE and all(
        d.stride == d.taps and d.dilation == 1 and d.result * d.taps == size and not d.before
        for d, size in zip(directions, sizes, strict=True)
    )


def write_out(b: Builder, name: str, inside: str | None = None) -> bool:
    """Make a window's reduction an element-wise chain over its taps, so that another kernel can compute it on the way
    instead of reading it from memory. `inside`: the reduction that reads it, once. False where it has many taps, or
    elements are in many windows."""
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
        axes = tuple(ir.Axis(at, 1, offsets.get(d, 0)) for d, at in enumerate(of))
        tap = b.add(ir.Strided(b.fresh("tap"), value.shape, b.values[value.arg].dtype, value.arg, axes))
        taps.append(b.cast(tap, value.dtype))
    total, *others, last = taps
    for tap in others:
        total = b.pointwise(_JOINED[value.kind], total, tap, dtype=value.dtype)
    b.pointwise(_JOINED[value.kind], total, last, dtype=value.dtype, name=name)
    return True


def _read_once(b: Builder, name: str, by: str) -> bool:
    """Whether one value reads it, whose result one value reads, and so on to `by`."""
    at = name
    while at != by:
        readers = [other.name for other in b.values.values() if at in ir.operands(other)]
        if len(readers) != 1:
            return False
        (at,) = readers
    return True


# ---- pooling


def _numbers(value: Any, count: int) -> list[int]:
    items = list(value) if isinstance(value, list | tuple) else [value]
    return [int(item) for item in (items * count if len(items) == 1 else items)]


def _pool_directions(b: Builder, node: Node, dilated: bool) -> list[Direction]:
    """Returns the windows of max_pool(x, kernel, stride, padding, dilation, ceil) or avg_pool(x, kernel, stride,
    padding, ceil, …)."""
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
    """The operand and the windows of an adaptive pooling, which are regular where the sizes divide; the others are
    reduced here, to one element each."""
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
    """Windows from ⌊i · size / result⌋ up to ⌈(i + 1) · size / result⌉ of one dimension: of a few elements one by one,
    wide ones by a reduction."""
    shape, inner = b.values[x].shape, b.internal(b.values[x].dtype)
    size = shape[dim]
    taps = max(-(-(i + 1) * size // result) - i * size // result for i in range(result))
    after = [1] * (len(shape) - dim - 1)

    def bounds(windows: tuple[int, ...]) -> tuple[str, str, str]:
        """First, last and how many of each window, for places of this shape, the windows' number first."""
        scaled = b.add(ir.Iota(b.fresh("scaled"), windows, "int32", 0, 0, size))
        start = b.pointwise("floordiv", scaled, result, dtype="int32")
        above = b.pointwise("add", scaled, size + result - 1, dtype="int32")
        end = b.pointwise("floordiv", above, result, dtype="int32")
        length = b.pointwise("sub", end, start, dtype="int32")
        return start, b.pointwise("sub", end, 1, dtype="int32"), length

    def taken(place: str, last: str) -> str:
        """The elements at these places; what is behind the last changes nothing."""
        windows = b.values[place].shape
        wanted = ir.Value("", (*shape[:dim], *windows, *shape[dim + 1 :]), b.values[x].dtype)
        near = b.pointwise("minimum", place, last, dtype="int32")
        value = b.cast(take_along(b, b.fresh("taken"), x, dim, near, wanted), inner)
        if kind != "sum":
            return value
        inside = b.reshape(b.pointwise("le", place, last, dtype="bool", at="i32"), (*windows, *after))
        return b.pointwise("where", inside, value, 0.0, dtype=inner)

    start, last, length = bounds((result,))
    if taps > _MOST_UNEQUAL:
        first, behind, _ = bounds((result, taps))
        tap = b.add(ir.Iota(b.fresh("tap"), (result, taps), "int32", 1, 0, 1))
        total = b.reduce(kind, taken(b.pointwise("add", first, tap, dtype="int32"), behind), (dim + 1,), dtype=inner)
    else:
        total = taken(start, last)
        for number in range(1, taps):
            value = taken(b.pointwise("add", start, number, dtype="int32"), last)
            total = b.pointwise(_JOINED[kind], total, value, dtype=inner)
    if kind == "sum":
        total = b.pointwise("div", total, b.reshape(b.cast(length, inner), (result, *after)), dtype=inner)
    return total


def _is_whole(b: Builder, x: str, directions: Sequence[Direction]) -> bool:
    """Whether there is one window, of everything."""
    sizes = b.values[x].shape[-len(directions) :]
    return all(d.result == 1 and d.taps == size and not d.before for d, size in zip(directions, sizes, strict=True))


def _check_floating(b: Builder, x: str) -> None:
    if b.values[x].dtype not in ir.FLOAT_DTYPES:
        raise CantLower("pools integers")


def _max(b: Builder, node: Node, x: str, directions: Sequence[Direction]) -> str | tuple[str | None, ...]:
    """The values; whoever reads the indices isn't covered."""
    _check_floating(b, x)
    dtype = b.values[x].dtype
    if _is_whole(b, x, directions):
        rank = len(b.values[x].shape)
        result = b.reduce("max", x, range(rank - len(directions), rank), dtype=dtype, keep=True)
    else:
        result = _reduced(b, "max", x, directions, float("-inf"), dtype)
    return b.finish(node, result) if len(node.outputs) == 1 else (result, None)


def max_pool(b: Builder, node: Node) -> str | tuple[str | None, ...]:
    """max_pool and max_pool_with_indices."""
    return _max(b, node, b.arg(node, 0), _pool_directions(b, node, dilated=True))


def adaptive_max_pool(b: Builder, node: Node) -> str | tuple[str | None, ...]:
    """Adaptive maximum pooling."""
    return _max(b, node, *_adaptive(b, node, "max"))


def _average(b: Builder, node: Node, x: str, directions: Sequence[Direction], divisor: str | float) -> str:
    _check_floating(b, x)
    if _is_whole(b, x, directions) and divisor == ir.numel([d.taps for d in directions]):
        rank = len(b.values[x].shape)
        return b.finish(node, mean_of(b, x, range(rank - len(directions), rank), keep=True))
    inner = b.internal(b.values[x].dtype)
    total = _reduced(b, "sum", x, directions, 0.0, inner)
    if isinstance(divisor, str):
        return b.finish(node, b.pointwise("div", total, divisor, dtype=inner))
    return b.finish(node, b.pointwise("mul", total, 1.0 / divisor, dtype=inner))


def avg_pool(b: Builder, node: Node) -> str:
    """avg_pool with each of its divisors: a given number, the window's size within x and its padding, or within x."""
    directions = _pool_directions(b, node, dilated=False)
    with_padding, given = b.arg(node, 5, "count_include_pad", True), b.arg(node, 6, "divisor_override")
    divisor = float(given) if given else _counts(b, node, directions, bool(with_padding))
    return _average(b, node, b.arg(node, 0), directions, divisor)


def _counts(b: Builder, node: Node, directions: Sequence[Direction], with_padding: bool) -> str | float:
    """How many elements each window counts: a number where that's the same everywhere, else a value [results…]."""
    sizes = b.values[b.arg(node, 0)].shape[-len(directions) :]
    results = tuple(d.result for d in directions)
    constant, varying = 1, None
    for at, (d, size) in enumerate(zip(directions, sizes, strict=True)):
        low, high = (-d.before, size + d.before) if with_padding else (0, size)
        starts = [index * d.stride - d.before for index in range(d.result)]
        counts = {min(start + d.taps, high) - max(start, low) for start in starts}
        if len(counts) == 1:
            constant *= counts.pop()
            continue
        start_at = b.add(ir.Iota(b.fresh("start"), results, "int32", at, -d.before, d.stride))
        end = b.pointwise("minimum", b.pointwise("add", start_at, d.taps, dtype="int32"), high, dtype="int32")
        part = b.pointwise("sub", end, b.pointwise("maximum", start_at, low, dtype="int32"), dtype="int32")
        varying = part if varying is None else b.pointwise("mul", varying, part, dtype="int32")
    return float(constant) if varying is None else b.pointwise("mul", varying, constant, dtype="int32")


def adaptive_avg_pool(b: Builder, node: Node) -> str:
    """Adaptive average pooling."""
    x, directions = _adaptive(b, node, "sum")
    return _average(b, node, x, directions, float(ir.numel([d.taps for d in directions])))


# ---- depthwise convolutions


def depthwise(b: Builder, node: Node) -> str:
    """A convolution with as many groups as channels, of few taps; out channel c · m + k reads channel c."""
    x, weight, bias = b.arg(node, 0), b.arg(node, 1), b.arg(node, 2, "bias")
    call = read(b, node)
    if call is None or not call.is_stencil:
        raise CantLower("takes several channels together, or many taps, or another type than 16- and 32-bit floats")
    inner = b.internal(call.result.dtype)
    directions = [Direction(a.result, a.filter, a.stride, a.dilation, a.before) for a in call.axes]
    count, multiple = len(directions), call.out_channels // call.groups
    windows = _windows(b, x, directions, 0.0)
    body, shift = windows.value, 0
    view, taps = b.values[body].shape, [d.taps for d in directions]
    channel = len(b.values[x].shape) - count - 1
    factors = b.reshape(weight, (call.groups, multiple, *[1] * count, *(n for n in taps if n > 1)))
    if multiple > 1:
        shift = 1
        shape = (*view[: channel + 1], 1, *view[channel + 1 :])
        body = b.reshape(body, shape)
    else:
        factors = b.reshape(weight, (call.groups, *[1] * count, *(n for n in taps if n > 1)))
    product = b.pointwise("mul", body, factors, dtype=inner)
    slides = tuple(ir.Slide(s.dim + shift, s.tap + shift, s.stride, s.dilation) for s in windows.slides)
    dims = tuple(dim + shift for dim in windows.dims)
    total = b.reduce("sum", product, dims, dtype=inner, slides=slides) if dims else product
    if multiple > 1:
        total = b.reshape(total, call.result.shape)
    if bias is not None:
        total = b.pointwise("add", total, b.reshape(bias, (call.out_channels, *[1] * count)), dtype=inner)
    return b.finish(node, total)


TABLE: dict[str, Lowering] = {
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "convolution"), depthwise),
    **{f"max_pool{n}d{tail}": max_pool for n in (1, 2, 3) for tail in ("", "_with_indices")},
    **{f"avg_pool{n}d": avg_pool for n in (1, 2, 3)},
    **{f"{lead}adaptive_avg_pool{n}d": adaptive_avg_pool for n in (1, 2, 3) for lead in ("", "_")},
    **{f"adaptive_max_pool{n}d": adaptive_max_pool for n in (1, 2, 3)},
}
