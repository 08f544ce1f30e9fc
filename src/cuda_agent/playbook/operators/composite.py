"""Element-wise operators that are several simpler ones."""

from __future__ import annotations

import math

from cuda_agent.core.graph import Node
from cuda_agent.playbook import ir
from cuda_agent.playbook.lower import Builder, CantLower, Lowering


def shrink(b: Builder, node: Node) -> str:
    """softshrink and hardshrink."""
    dtype, x, lam = b.out(node).dtype, b.arg(node, 0), float(b.arg(node, 1, "lambd", 0.5))
    at = ir.compute_type(dtype)
    above, below = (b.pointwise(op, x, at_, dtype="bool", at=at) for op, at_ in (("gt", lam), ("lt", -lam)))
    soft = "softshrink" in node.op
    up = b.pointwise("sub", x, lam, dtype=b.internal(dtype)) if soft else x
    down = b.pointwise("add", x, lam, dtype=b.internal(dtype)) if soft else x
    rest = b.pointwise("where", below, down, 0.0, dtype=b.internal(dtype))
    return b.pointwise("where", above, up, rest, dtype=dtype, name=node.name)


def glu(b: Builder, node: Node) -> str:
    x, dim = b.arg(node, 0), b.arg(node, 1, "dim", -1)
    source = b.values[x]
    dim %= len(source.shape)
    meta = b.out(node)

    def half(offset: int) -> str:
        axes = tuple(ir.Axis(d, 1, offset if d == dim else 0) for d in range(len(source.shape)))
        return b.add(ir.Strided(b.fresh("half"), meta.shape, source.dtype, x, axes))

    gate = b.pointwise("sigmoid", half(meta.shape[dim]), dtype=b.internal(meta.dtype))
    return b.pointwise("mul", half(0), gate, dtype=meta.dtype, name=node.name)


def nan_to_num(b: Builder, node: Node) -> str:
    dtype, x = b.out(node).dtype, b.arg(node, 0)
    if ir.compute_type(dtype) != "f32":
        raise CantLower("only for 16- and 32-bit floats")
    big = {"float32": 3.4028234663852886e38, "bfloat16": 3.3895313892515355e38, "float16": 65504.0}[dtype]
    nan, high, low = (b.arg(node, i, n) for i, n in ((1, "nan"), (2, "posinf"), (3, "neginf")))
    x = b.pointwise("where", b.pointwise("isnan", x, dtype="bool", at="f32"), nan or 0.0, x, dtype=dtype)
    is_high = b.pointwise("eq", x, math.inf, dtype="bool", at="f32")
    x = b.pointwise("where", is_high, big if high is None else high, x, dtype=dtype)
    is_low = b.pointwise("eq", x, -math.inf, dtype="bool", at="f32")
    return b.pointwise("where", is_low, -big if low is None else low, x, dtype=dtype, name=node.name)


def frac(b: Builder, node: Node) -> str:
    dtype, x = b.out(node).dtype, b.arg(node, 0)
    return b.pointwise("sub", x, b.pointwise("trunc", x, dtype=b.internal(dtype)), dtype=dtype, name=node.name)


def xlogy(b: Builder, node: Node) -> str:
    """x·log y, 0 where x is 0 (NaN where y is)."""
    dtype, x, y = b.out(node).dtype, b.arg(node, 0), b.arg(node, 1)
    inner, at = b.internal(dtype), ir.compute_type(dtype)
    product = b.pointwise("mul", x, b.pointwise("log", y, dtype=inner), dtype=inner)
    zero = b.pointwise("eq", x, 0.0, dtype="bool", at=at)
    known = b.pointwise("not", b.pointwise("isnan", y, dtype="bool", at=at), dtype="bool")
    return b.pointwise(
        "where", b.pointwise("and", zero, known, dtype="bool"), 0.0, product, dtype=dtype, name=node.name
    )


def logit(b: Builder, node: Node) -> str:
    dtype, x, eps = b.out(node).dtype, b.arg(node, 0), b.arg(node, 1, "eps")
    inner = b.internal(dtype)
    if eps is not None:
        x = b.pointwise("minimum", b.pointwise("maximum", x, eps, dtype=inner), 1 - eps, dtype=inner)
    odds = b.pointwise("div", x, b.pointwise("sub", 1.0, x, dtype=inner), dtype=inner)
    return b.pointwise("log", odds, dtype=dtype, name=node.name)


def hypot(b: Builder, node: Node) -> str:
    dtype = b.out(node).dtype
    inner = b.internal(dtype)
    squares = [b.pointwise("square", b.arg(node, i), dtype=inner) for i in (0, 1)]
    return b.pointwise("sqrt", b.pointwise("add", *squares, dtype=inner), dtype=dtype, name=node.name)


def logaddexp(b: Builder, node: Node) -> str:
    """max + log1p(exp(-|x - y|)); equal infinities stay themselves."""
    dtype, x, y = b.out(node).dtype, b.arg(node, 0), b.arg(node, 1)
    inner, at = b.internal(dtype), ir.compute_type(dtype)
    top = b.pointwise("maximum", x, y, dtype=inner)
    gap = b.pointwise("neg", b.pointwise("abs", b.pointwise("sub", x, y, dtype=inner), dtype=inner), dtype=inner)
    total = b.pointwise(
        "add", top, b.pointwise("log1p", b.pointwise("exp", gap, dtype=inner), dtype=inner), dtype=inner
    )
    same = b.pointwise("eq", x, y, dtype="bool", at=at)
    infinite = b.pointwise("and", same, b.pointwise("isinf", x, dtype="bool", at=at), dtype="bool")
    return b.pointwise("where", infinite, top, total, dtype=dtype, name=node.name)


def lerp(b: Builder, node: Node) -> str:
    dtype = b.out(node).dtype
    x, y, weight = (b.arg(node, i) for i in range(3))
    step = b.pointwise("mul", b.pointwise("sub", y, x, dtype=b.internal(dtype)), weight, dtype=b.internal(dtype))
    return b.pointwise("add", x, step, dtype=dtype, name=node.name)


TABLE: dict[str, Lowering] = {
    "softshrink": shrink, "hardshrink": shrink, "lerp": lerp, "glu": glu, "nan_to_num": nan_to_num, "frac": frac,
    "xlogy": xlogy, "logit": logit, "hypot": hypot, "logaddexp": logaddexp,
}  # fmt: skip
