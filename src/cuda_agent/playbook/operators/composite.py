"""Lowers element-wise operators to several simpler ones."""

from __future__ import annotations

import math

from cuda_agent.core.graph import Node
from cuda_agent.playbook import ir
from cuda_agent.playbook.lower import Builder, CantLower, Lowering


def shrink(b: Builder, node: Node) -> str:
    """Lowers softshrink and hardshrink."""
    dtype, x, lam = b.out(node).dtype, b.arg(node, 0), float(b.arg(node, 1, "lambd", 0.5))
    inner = b.typed(b.internal(dtype))
    above, below = (b.test(op, x, end, at=ir.compute_type(dtype)) for op, end in (("gt", lam), ("lt", -lam)))
    soft = "softshrink" in node.op
    up = inner("sub", x, lam) if soft else x
    down = inner("add", x, lam) if soft else x
    return b.result(node, "where", above, up, inner("where", below, down, 0.0))


def glu(b: Builder, node: Node) -> str:
    x, meta = b.arg(node, 0), b.out(node)
    dim = b.arg(node, 1, "dim", -1) % b.rank(x)
    size = meta.shape[dim]
    gate = b.slice(x, dim, size, size, name=b.fresh("half"))
    gate = b.pointwise("sigmoid", gate, dtype=b.internal(meta.dtype))
    return b.result(node, "mul", b.slice(x, dim, 0, size, name=b.fresh("half")), gate)


def nan_to_num(b: Builder, node: Node) -> str:
    dtype, x = b.out(node).dtype, b.arg(node, 0)
    if ir.compute_type(dtype) != "f32":
        raise CantLower("only for 16- and 32-bit floats")
    big = {"float32": 3.4028234663852886e38, "bfloat16": 3.3895313892515355e38, "float16": 65504.0}[dtype]
    nan, high, low = (b.arg(node, i, n) for i, n in ((1, "nan"), (2, "posinf"), (3, "neginf")))
    op = b.typed(dtype)
    x = op("where", b.test("isnan", x, at="f32"), nan or 0.0, x)
    x = op("where", b.test("eq", x, math.inf, at="f32"), big if high is None else high, x)
    return b.result(node, "where", b.test("eq", x, -math.inf, at="f32"), -big if low is None else low, x)


def frac(b: Builder, node: Node) -> str:
    x = b.arg(node, 0)
    return b.result(node, "sub", x, b.pointwise("trunc", x, dtype=b.internal(b.out(node).dtype)))


def xlogy(b: Builder, node: Node) -> str:
    """Lowers xlogy: x·log y, 0 where x is 0, NaN where y is."""
    dtype, (x, y) = b.out(node).dtype, b.args(node, 0, 1)
    inner, at = b.typed(b.internal(dtype)), ir.compute_type(dtype)
    product = inner("mul", x, inner("log", y))
    zero = b.test("eq", x, 0.0, at=at)
    known = b.test("not", b.test("isnan", y, at=at))
    return b.result(node, "where", b.test("and", zero, known), 0.0, product)


def logit(b: Builder, node: Node) -> str:
    x, eps = b.arg(node, 0), b.arg(node, 1, "eps")
    inner = b.typed(b.internal(b.out(node).dtype))
    if eps is not None:
        x = inner("minimum", inner("maximum", x, eps), 1 - eps)
    return b.result(node, "log", inner("div", x, inner("sub", 1.0, x)))


def hypot(b: Builder, node: Node) -> str:
    inner = b.typed(b.internal(b.out(node).dtype))
    return b.result(node, "sqrt", inner("add", *(inner("square", arg) for arg in b.args(node, 0, 1))))


def logaddexp(b: Builder, node: Node) -> str:
    """Lowers logaddexp: max + log1p(exp(-|x - y|)), and x where x and y are the same infinity."""
    dtype, (x, y) = b.out(node).dtype, b.args(node, 0, 1)
    inner, at = b.typed(b.internal(dtype)), ir.compute_type(dtype)
    top = inner("maximum", x, y)
    gap = inner("neg", inner("abs", inner("sub", x, y)))
    total = inner("add", top, inner("log1p", inner("exp", gap)))
    same = b.test("eq", x, y, at=at)
    return b.result(node, "where", b.test("and", same, b.test("isinf", x, at=at)), top, total)


def lerp(b: Builder, node: Node) -> str:
    x, y, weight = b.args(node, 0, 1, 2)
    inner = b.typed(b.internal(b.out(node).dtype))
    return b.result(node, "add", x, inner("mul", inner("sub", y, x), weight))


TABLE: dict[str, Lowering] = {
    "softshrink": shrink, "hardshrink": shrink, "lerp": lerp, "glu": glu, "nan_to_num": nan_to_num, "frac": frac,
    "xlogy": xlogy, "logit": logit, "hypot": hypot, "logaddexp": logaddexp,
}  # fmt: skip
