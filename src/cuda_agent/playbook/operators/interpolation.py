"""Upsampling: each result's position in the source, along each dimension by itself; and sampling at given positions.

Positions are computed in float32 as PyTorch does (ATen/native/UpSample.h): scale = in / out, or 1 / the given factor.
"""

from __future__ import annotations

import struct
from typing import Any

from cuda_agent.core.graph import Node, TensorMeta
from cuda_agent.playbook import ir
from cuda_agent.playbook.lower import Builder, CantLower, Lowering
from cuda_agent.playbook.operators.views import take_along


def _dimensions(node: Node) -> int:
    digits = [c for c in node.op.split(".")[1] if c.isdigit()]
    return int(digits[-1])


def _given_scales(b: Builder, node: Node, position: int, count: int) -> list[float | None]:
    """Returns the scales of `.vec` overloads (a list or None). The others give one number for each dimension."""
    if node.op.endswith(".vec"):
        given = b.arg(node, position, "scale_factors")
        return [None] * count if given is None else [float(s) for s in given]
    found = [b.arg(node, position + d) for d in range(count)]
    return [None if s is None else float(s) for s in found]


def _taken(b: Builder, x: str, dim: int, index: str) -> str:
    shape = list(b.values[x].shape)
    shape[dim] = b.values[index].shape[0]
    meta: Any = ir.Value("", tuple(shape), b.values[x].dtype)
    return take_along(b, b.fresh("taken"), x, dim, index, meta)


def nearest(b: Builder, node: Node) -> str:
    """upsample_nearest and _upsample_nearest_exact: the source at floor((i + shift) · scale)."""
    x, count = b.arg(node, 0), _dimensions(node)
    exact, results = "exact" in node.op, b.out(node).shape
    scales = _given_scales(b, node, 2, count)
    for number in range(count):
        dim = len(results) - count + number
        size, result = b.values[x].shape[dim], results[dim]
        if result % size == 0 and scales[number] in (None, result / size):
            x = _repeated(b, x, dim, result // size)
            continue
        given = scales[number]
        scale = 1.0 / given if given else size / result
        place = b.cast(b.add(ir.Iota(b.fresh("place"), (result,), "int32", 0)), "float32")
        if exact:
            place = b.pointwise("add", place, 0.5, dtype="float32")
        place = b.pointwise("floor", b.pointwise("mul", place, _single(scale), dtype="float32"), dtype="float32")
        x = _taken(b, x, dim, b.pointwise("minimum", b.cast(place, "int32"), size - 1, dtype="int32"))
    return b.finish(node, x)


def _single(value: float) -> float:
    """Rounded to float32."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def _repeated(b: Builder, x: str, dim: int, times: int) -> str:
    """Each element so many times in a row."""
    if times == 1:
        return x
    shape = b.values[x].shape
    single = b.reshape(x, (*shape[: dim + 1], 1, *shape[dim + 1 :]))
    wide = b.expand(single, (*shape[: dim + 1], times, *shape[dim + 1 :]))
    return b.reshape(wide, (*shape[:dim], shape[dim] * times, *shape[dim + 1 :]))


def linear(b: Builder, node: Node) -> str:
    """upsample_linear1d, bilinear2d, trilinear3d: between two neighbours along each dimension."""
    x, count = b.arg(node, 0), {"linear1d": 1, "bilinear2d": 2, "trilinear3d": 3}[node.op.split(".")[1].split("_")[-1]]
    meta, aligned = b.out(node), bool(b.arg(node, 2, "align_corners"))
    if b.values[x].dtype not in ir.FLOAT_DTYPES:
        raise CantLower("interpolates integers")
    inner, scales = b.internal(meta.dtype), _given_scales(b, node, 3, count)
    for number in range(count):
        dim = len(meta.shape) - count + number
        size, result = b.values[x].shape[dim], meta.shape[dim]
        if size != result or scales[number] not in (None, 1.0):
            x = _between(b, x, dim, size, result, scales[number], aligned, inner)
    return b.finish(node, x)


def _between(
    b: Builder, x: str, dim: int, size: int, result: int, given: float | None, aligned: bool, inner: str
) -> str:
    place = b.cast(b.add(ir.Iota(b.fresh("place"), (result,), "int32", 0)), "float32")
    if aligned:
        scale = (size - 1) / (result - 1) if result > 1 else 0.0
        place = b.pointwise("mul", place, _single(scale), dtype="float32")
    else:
        scale = 1.0 / given if given else size / result
        middle = b.pointwise("add", place, 0.5, dtype="float32")
        place = b.pointwise("mul", middle, _single(scale), dtype="float32")
        place = b.pointwise("maximum", b.pointwise("sub", place, 0.5, dtype="float32"), 0.0, dtype="float32")
    low = b.pointwise("minimum", b.cast(place, "int32"), size - 1, dtype="int32")
    high = b.pointwise("minimum", b.pointwise("add", low, 1, dtype="int32"), size - 1, dtype="int32")
    weight = b.pointwise("sub", place, b.cast(low, "float32"), dtype="float32")
    rank = len(b.values[x].shape)
    weight = b.reshape(weight, (result, *[1] * (rank - dim - 1)))
    first, second = (b.cast(_taken(b, x, dim, index), inner) for index in (low, high))
    rest = b.pointwise("sub", 1.0, weight, dtype="float32")
    return b.pointwise(
        "add",
        b.pointwise("mul", first, rest, dtype=inner),
        b.pointwise("mul", second, weight, dtype=inner),
        dtype=inner,
    )


def grid_sample(b: Builder, node: Node) -> str:
    """grid_sampler of images [N, C, H, W] at positions [N, H', W', 2] of -1 to 1 (ATen/native/GridSampler.h): between
    four neighbours, or the nearest; zeros outside, or the border."""
    x, grid, meta = b.arg(node, 0), b.arg(node, 1), b.out(node)
    mode, padding, aligned = int(b.arg(node, 2)), int(b.arg(node, 3)), bool(b.arg(node, 4))
    if len(meta.shape) != 4 or mode not in (0, 1) or padding not in (0, 1) or meta.dtype == "float64":
        raise CantLower("samples volumes, cubically, reflected or in float64")
    inner = b.internal(meta.dtype)
    batch, channels, high, wide = b.values[x].shape
    flat = b.reshape(x, (batch, channels, high * wide))
    places = [_place(b, grid, at, size, aligned, padding == 1) for at, size in ((1, high), (0, wide))]
    if mode == 1:
        nearest_ = [b.pointwise("round", place, dtype="float32") for place in places]
        return b.finish(node, _at(b, flat, nearest_, (high, wide), meta, inner))
    lows = [b.pointwise("floor", place, dtype="float32") for place in places]
    parts = [b.pointwise("sub", place, low, dtype="float32") for place, low in zip(places, lows, strict=True)]
    rests = [b.pointwise("sub", 1.0, part, dtype="float32") for part in parts]
    total: str | None = None
    for down in (0, 1):
        for right in (0, 1):
            corner = [
                b.pointwise("add", low, float(by), dtype="float32") for low, by in zip(lows, (down, right), strict=True)
            ]
            weight = b.pointwise("mul", (rests, parts)[down][0], (rests, parts)[right][1], dtype="float32")
            weight = b.reshape(weight, (batch, 1, *meta.shape[2:]))
            value = b.pointwise("mul", _at(b, flat, corner, (high, wide), meta, inner), weight, dtype=inner)
            total = value if total is None else b.pointwise("add", total, value, dtype=inner)
    assert total is not None
    return b.finish(node, total)


def _place(b: Builder, grid: str, which: int, size: int, aligned: bool, clipped: bool) -> str:
    """Positions in elements, of one coordinate of the grid."""
    shape = b.values[grid].shape[:-1]
    axes = (*(ir.Axis(d) for d in range(len(shape))), ir.Axis(None, 1, which))
    given = b.cast(b.add(ir.Strided(b.fresh("given"), shape, b.values[grid].dtype, grid, axes)), "float32")
    shifted = b.pointwise("add", given, 1.0, dtype="float32")
    scaled = b.pointwise("mul", shifted, (size - 1) / 2 if aligned else size / 2, dtype="float32")
    place = scaled if aligned else b.pointwise("sub", scaled, 0.5, dtype="float32")
    if clipped:
        place = b.pointwise("minimum", b.pointwise("maximum", place, 0.0, dtype="float32"), size - 1.0, dtype="float32")
    return place


def _at(b: Builder, flat: str, corner: list[str], sizes: tuple[int, int], meta: TensorMeta, inner: str) -> str:
    """[N, C, H', W']: the image at whole positions (row, column), zero outside."""
    inside: str | None = None
    index: str | None = None
    for place, size in zip(corner, sizes, strict=True):
        # A NaN reads the first element, and doesn't fit.
        near = b.pointwise("fmin", b.pointwise("fmax", place, 0.0, dtype="float32"), size - 1.0, dtype="float32")
        fits = b.pointwise("eq", near, place, dtype="bool", at="f32")
        inside = fits if inside is None else b.pointwise("and", inside, fits, dtype="bool")
        whole = b.cast(near, "int32")
        if index is not None:
            whole = b.pointwise("add", b.pointwise("mul", index, size, dtype="int32"), whole, dtype="int32")
        index = whole
    assert inside is not None and index is not None
    taken = ir.Take(b.fresh("sampled"), meta.shape, meta.dtype, flat, 2, index, (0, 1, -1), (0, 2, 3))
    value = b.cast(b.add(taken), inner)
    shape = b.values[inside].shape
    return b.pointwise("where", b.reshape(inside, (shape[0], 1, *shape[1:])), value, 0.0, dtype=inner)


TABLE: dict[str, Lowering] = {
    "grid_sampler": grid_sample,
    "grid_sampler_2d": grid_sample,
    **{f"{lead}upsample_nearest{tail}{n}d": nearest for n in (1, 2, 3) for lead, tail in (("", ""), ("_", "_exact"))},
    **{f"upsample_{name}": linear for name in ("linear1d", "bilinear2d", "trilinear3d")},
}
