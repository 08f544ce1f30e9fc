"""Lowers upsampling, one dimension after the other, and sampling at given positions.

Positions in the source are computed in float32 as in PyTorch (ATen/native/UpSample.h), with scale = in / out, or 1 /
the given factor.
"""

import itertools
import struct

from cuda_agent.core.graph import Node, TensorMeta
from cuda_agent.playbook import ir
from cuda_agent.playbook.lower import Builder, CantLower


def _dimensions(node: Node) -> int:
    return int([c for c in node.op.split(".")[1] if c.isdigit()][-1])


def _given_scales(b: Builder, node: Node, position: int, count: int) -> list[float | None]:
    """Returns the scale factors. `.vec` overloads have a list or None, the others one number a dimension."""
    if node.op.endswith(".vec"):
        given = b.arg(node, position, "scale_factors")
        return [None] * count if given is None else [float(s) for s in given]
    found = [b.arg(node, position + d) for d in range(count)]
    return [None if s is None else float(s) for s in found]


def _taken(b: Builder, x: str, dim: int, index: str) -> str:
    return b.take(x, dim, index, name=b.fresh("taken"))


def _places(b: Builder, count: int) -> str:
    """Adds 0, 1, … count - 1 in float32."""
    return b.cast(b.iota("place", (count,)), "float32")


def nearest(b: Builder, node: Node) -> str:
    """Lowers upsample_nearest and _upsample_nearest_exact: the source at floor((i + shift) · scale)."""
    x, count = b.arg(node, 0), _dimensions(node)
    exact, results = "exact" in node.op, b.out(node).shape
    op = b.typed("float32")
    for dim, given in enumerate(_given_scales(b, node, 2, count), len(results) - count):
        size, result = b.shape_of(x)[dim], results[dim]
        if result % size == 0 and given in (None, result / size):
            x = _repeated(b, x, dim, result // size)
            continue
        place = _places(b, result)
        if exact:
            place = op("add", place, 0.5)
        place = op("floor", op("mul", place, _single(1.0 / given if given else size / result)))
        x = _taken(b, x, dim, b.pointwise("minimum", b.cast(place, "int32"), size - 1, dtype="int32"))
    return b.finish(node, x)


def _single(value: float) -> float:
    """Returns the value rounded to float32."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def _repeated(b: Builder, x: str, dim: int, times: int) -> str:
    """Adds a view that repeats each element along a dimension."""
    if times == 1:
        return x
    shape = b.shape_of(x)
    single = b.reshape(x, ir.resized(shape, dim, shape[dim], 1))
    return b.reshape(
        b.expand(single, ir.resized(shape, dim, shape[dim], times)), ir.resized(shape, dim, shape[dim] * times)
    )


def linear(b: Builder, node: Node) -> str:
    """Lowers upsample_linear1d, bilinear2d and trilinear3d: between two neighbours along each dimension."""
    x, count = b.arg(node, 0), {"linear1d": 1, "bilinear2d": 2, "trilinear3d": 3}[node.op.split(".")[1].split("_")[-1]]
    meta, aligned = b.out(node), bool(b.arg(node, 2, "align_corners"))
    if b.values[x].dtype not in ir.FLOAT_DTYPES:
        raise CantLower("interpolates integers")
    for dim, given in enumerate(_given_scales(b, node, 3, count), len(meta.shape) - count):
        if b.shape_of(x)[dim] != meta.shape[dim] or given not in (None, 1.0):
            x = _between(b, x, dim, meta.shape[dim], given, aligned, b.internal(meta.dtype))
    return b.finish(node, x)


def _between(b: Builder, x: str, dim: int, result: int, given: float | None, aligned: bool, inner: str) -> str:
    """Adds the linear interpolation along one dimension."""
    op, whole, wide = b.typed("float32"), b.typed("int32"), b.typed(inner)
    size, place = b.shape_of(x)[dim], _places(b, result)
    if aligned:
        place = op("mul", place, _single((size - 1) / (result - 1) if result > 1 else 0.0))
    else:
        place = op("mul", op("add", place, 0.5), _single(1.0 / given if given else size / result))
        place = op("maximum", op("sub", place, 0.5), 0.0)
    low = whole("minimum", b.cast(place, "int32"), size - 1)
    high = whole("minimum", whole("add", low, 1), size - 1)
    weight = op("sub", place, b.cast(low, "float32"))
    weight = b.reshape(weight, (result, *[1] * (b.rank(x) - dim - 1)))
    first, second = (b.cast(_taken(b, x, dim, index), inner) for index in (low, high))
    rest = op("sub", 1.0, weight)
    return wide("add", wide("mul", first, rest), wide("mul", second, weight))


def grid_sample(b: Builder, node: Node) -> str:
    """Lowers grid_sampler of images [N, C, H, W] at positions [N, H', W', 2] in [-1, 1] (ATen/native/GridSampler.h): by
    bilinear or nearest interpolation, with zeros or the border outside."""
    x, grid, meta = b.arg(node, 0), b.arg(node, 1), b.out(node)
    mode, padding, aligned = int(b.arg(node, 2)), int(b.arg(node, 3)), bool(b.arg(node, 4))
    if len(meta.shape) != 4 or mode not in (0, 1) or padding not in (0, 1) or meta.dtype == "float64":
        raise CantLower("samples volumes, cubically, reflected or in float64")
    inner = b.internal(meta.dtype)
    op = b.typed("float32")
    batch, channels, high, wide = b.shape_of(x)
    flat = b.reshape(x, (batch, channels, high * wide))
    places = [_place(b, grid, at, size, aligned, padding == 1) for at, size in ((1, high), (0, wide))]
    if mode == 1:
        return b.finish(node, _at(b, flat, [op("round", place) for place in places], (high, wide), meta, inner))
    lows = [op("floor", place) for place in places]
    parts = [op("sub", place, low) for place, low in zip(places, lows, strict=True)]
    rests = [op("sub", 1.0, part) for part in parts]
    total = ""
    for down, right in itertools.product((0, 1), (0, 1)):
        corner = [op("add", low, float(by)) for low, by in zip(lows, (down, right), strict=True)]
        weight = op("mul", (rests, parts)[down][0], (rests, parts)[right][1])
        weight = b.reshape(weight, (batch, 1, *meta.shape[2:]))
        value = b.pointwise("mul", _at(b, flat, corner, (high, wide), meta, inner), weight, dtype=inner)
        total = b.pointwise("add", total, value, dtype=inner) if total else value
    return b.finish(node, total)


def _place(b: Builder, grid: str, which: int, size: int, aligned: bool, clipped: bool) -> str:
    """Adds one coordinate of the grid's positions, in elements."""
    op = b.typed("float32")
    given = b.cast(b.select(grid, b.rank(grid) - 1, which, name=b.fresh("given")), "float32")
    place = op("mul", op("add", given, 1.0), (size - 1) / 2 if aligned else size / 2)
    place = place if aligned else op("sub", place, 0.5)
    return op("minimum", op("maximum", place, 0.0), size - 1.0) if clipped else place


def _at(b: Builder, flat: str, corner: list[str], sizes: tuple[int, int], meta: TensorMeta, inner: str) -> str:
    """Adds the image [N, C, H', W'] at integer positions (row, column), zero outside."""
    op, whole = b.typed("float32"), b.typed("int32")
    inside = index = ""
    for place, size in zip(corner, sizes, strict=True):
        # A NaN reads the first element, and counts as outside.
        near = op("fmin", op("fmax", place, 0.0), size - 1.0)
        fits = b.test("eq", near, place, at="f32")
        inside = b.test("and", inside, fits) if inside else fits
        step = b.cast(near, "int32")
        index = whole("add", whole("mul", index, size), step) if index else step
    taken = ir.Take(b.fresh("sampled"), meta.shape, meta.dtype, flat, 2, index, (0, 1, -1), (0, 2, 3))
    value = b.cast(b.add(taken), inner)
    shape = b.shape_of(inside)
    return b.pointwise("where", b.reshape(inside, (shape[0], 1, *shape[1:])), value, 0.0, dtype=inner)
