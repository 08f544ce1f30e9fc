"""Upsampling: each result's position in the source, along each dimension by itself.

Positions are computed in float32 as PyTorch does (ATen/native/UpSample.h): scale = in / out, or 1 / the given factor.
"""

from __future__ import annotations

import struct
from typing import Any

from cuda_agent.core.graph import Node
from cuda_agent.playbook import ir
from cuda_agent.playbook.lower import Builder, CantLower, Lowering
from cuda_agent.playbook.operators.views import take_along


def _dimensions(node: Node) -> int:
    digits = [c for c in node.op.split(".")[1] if c.isdigit()]
    return int(digits[-1])


def _given_scales(b: Builder, node: Node, position: int, count: int) -> list[float | None]:
    """Of `.vec` overloads (a list or None); the others give one number a dimension."""
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


TABLE: dict[str, Lowering] = {
    **{f"{lead}upsample_nearest{tail}{n}d": nearest for n in (1, 2, 3) for lead, tail in (("", ""), ("_", "_exact"))},
    **{f"upsample_{name}": linear for name in ("linear1d", "bilinear2d", "trilinear3d")},
}
