"""Lowers element-wise operators. The captured result type decides the compute type."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from cuda_agent.core.graph import Node
from cuda_agent.core.words import word_lists
from cuda_agent.playbook import ir
from cuda_agent.playbook.lower import Builder, CantLower, Lowering


def _named(family: str, lowering: Callable[[str], Lowering]) -> dict[str, Lowering]:
    """Returns the lowerings of a family of operators: ATen's name -> `lowering` of the kernels' operator."""
    pairs = (word.partition(":") for word in word_lists(__file__)[family])
    return {name: lowering(op or name.removeprefix("special_")) for name, _, op in pairs}


def common_dtype(b: Builder, args: list[Any]) -> str:
    """Returns PyTorch's result type of tensors and Python scalars."""
    dims = [b.values[a].dtype for a in args if isinstance(a, str) and b.values[a].shape]
    zeros = [b.values[a].dtype for a in args if isinstance(a, str) and not b.values[a].shape]
    result = ""
    for group in (dims, zeros):
        for dtype in group:
            if not result or (group is zeros and _category(dtype) > _category(result)) or group is dims:
                result = ir.promote(result, dtype) if result else dtype
    for scalar in args:
        if not isinstance(scalar, str) and _scalar_category(scalar) > _category(result):
            result = "float32" if isinstance(scalar, float) else "int64"
    return result


def _category(dtype: str) -> int:
    return 0 if dtype == "bool" else 2 if dtype in ir.FLOAT_DTYPES else 1


def _scalar_category(value: ir.Scalar) -> int:
    return 0 if isinstance(value, bool) else 1 if isinstance(value, int) else 2


def _unary(op: str) -> Lowering:
    def lower(b: Builder, node: Node) -> str:
        dtype, x = b.out(node).dtype, b.arg(node, 0)
        source = b.values[x].dtype
        if op in ("floor", "ceil", "trunc", "round") and source not in ir.FLOAT_DTYPES:
            return b.cast(x, dtype, node.name)
        decimals = int(b.arg(node, 9, "decimals", 0)) if op == "round" else 0
        if decimals:
            there, back = ("mul", "div") if decimals > 0 else ("div", "mul")
            inner = b.typed(b.internal(dtype))
            return b.result(node, back, inner("round", inner(there, x, 10.0 ** abs(decimals))), 10.0 ** abs(decimals))
        if op in ("isnan", "isinf", "isfinite", "signbit", "not"):
            at = ir.compute_type(source)
            at = at if at in ("f32", "f64") or op == "not" else "f32"
            return b.pointwise(op, x, dtype="bool", at=at, name=node.name)
        if op == "bitnot" and source == "bool":
            return b.pointwise("not", x, dtype="bool", name=node.name)
        return b.result(node, op, x)

    return lower


def _binary(op: str, other: str = "other") -> Lowering:
    return lambda b, node: b.result(node, op, b.arg(node, 0), b.arg(node, 1, other))


def _with_numbers(op: str, **defaults: float) -> Lowering:
    """Lowers an operator whose tensor is followed by numbers, given as their names and defaults."""

    def lower(b: Builder, node: Node) -> str:
        numbers = (float(b.arg(node, at, *pair)) for at, pair in enumerate(defaults.items(), 1))
        return b.result(node, op, b.arg(node, 0), *numbers)

    return lower


def _compare(op: str) -> Lowering:
    def lower(b: Builder, node: Node) -> str:
        args = [b.arg(node, 0), b.arg(node, 1, "other")]
        at = ir.compute_type(common_dtype(b, args))
        return b.pointwise(op, *args, dtype="bool", at="i32" if at == "b" else at, name=node.name)

    return lower


def _logical(op: str) -> Lowering:
    return lambda b, node: b.pointwise(op, *b.args(node, 0, 1), dtype="bool", at="b", name=node.name)


def _bitwise(op: str) -> Lowering:
    def lower(b: Builder, node: Node) -> str:
        return b.result(node, op.removeprefix("bit") if b.out(node).dtype == "bool" else op, *b.args(node, 0, 1))

    return lower


def _scaled(b: Builder, node: Node, x: Any, alpha: Any) -> Any:
    if alpha in (1, None):
        return x
    return b.pointwise("mul", x, alpha, dtype=b.internal(b.out(node).dtype)) if isinstance(x, str) else x * alpha


def add(b: Builder, node: Node) -> str:
    x, y, alpha = *b.args(node, 0, 1), b.arg(node, 2, "alpha", 1)
    if b.out(node).dtype == "bool":
        return b.result(node, "or", x, y)
    return b.result(node, "add", x, _scaled(b, node, y, alpha))


def sub(b: Builder, node: Node) -> str:
    """Lowers sub and rsub."""
    x, y = b.args(node, *((1, 0) if "rsub" in node.op else (0, 1)))
    return b.result(node, "sub", x, _scaled(b, node, y, b.arg(node, 2, "alpha", 1)))


def div(b: Builder, node: Node) -> str:
    dtype, mode = b.out(node).dtype, b.arg(node, 9, "rounding_mode")
    x, y = b.args(node, 0, 1)
    # The inverse of a power of two is exact.
    is_exact = not isinstance(y, str) and y != 0 and math.frexp(y)[0] in (0.5, -0.5)
    if mode is None and is_exact and ir.compute_type(dtype) == "f32":
        return b.result(node, "mul", x, 1.0 / y)
    if mode == "floor":
        return b.result(node, "floordiv", x, y)
    if mode is not None and ir.compute_type(dtype) in ("f32", "f64"):
        return b.result(node, "trunc", b.pointwise("div", x, y, dtype=b.internal(dtype)))
    return b.result(node, "div", x, y)


def nextafter(b: Builder, node: Node) -> str:
    dtype = b.out(node).dtype
    if b.internal(dtype) != dtype:
        raise CantLower("neighbours of half precision")
    return b.result(node, "nextafter", *b.args(node, 0, 1))


def power(b: Builder, node: Node) -> str:
    """Lowers pow. Small integer and half exponents become products and roots."""
    dtype = b.out(node).dtype
    x, y = b.args(node, 0, 1)
    inner = b.typed(b.internal(dtype))
    if isinstance(y, str) or not isinstance(x, str):
        return b.result(node, "pow", x, y)
    if y == 1:
        return b.cast(x, dtype, node.name)
    if y == 2:
        return b.result(node, "square", x)
    if y in (3, 4):
        two = inner("square", x)
        return b.result(node, "mul", two, x if y == 3 else two)
    if ir.compute_type(dtype) in ("f32", "f64"):
        if y in (0.5, -0.5, -1):
            return b.result(node, {0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}[y], x)
        if y == -2:
            return b.result(node, "reciprocal", inner("square", x))
    return b.result(node, "pow", x, y)


def gelu(b: Builder, node: Node) -> str:
    op = "gelu_tanh" if b.arg(node, 1, "approximate", "none") == "tanh" else "gelu"
    return b.result(node, op, b.arg(node, 0))


def prelu(b: Builder, node: Node) -> str:
    x, weight = b.args(node, 0, 1)
    if b.rank(weight) and b.rank(x) > 1:
        weight = b.reshape(weight, (ir.numel(b.shape_of(weight)), *([1] * (b.rank(x) - 2))))
    return b.result(node, "leaky_relu", x, weight)


def elu(b: Builder, node: Node) -> str:
    alpha, scale, inner = (float(b.arg(node, i, n, 1.0)) for i, n in ((1, "alpha"), (2, "scale"), (3, "input_scale")))
    return b.result(node, "elu", b.arg(node, 0), alpha * scale, scale, inner)


def celu(b: Builder, node: Node) -> str:
    alpha = float(b.arg(node, 1, "alpha", 1.0))
    return b.result(node, "elu", b.arg(node, 0), alpha, 1.0, 1.0 / alpha)


def heaviside(b: Builder, node: Node) -> str:
    """Lowers heaviside: 1 above zero, 0 below, the second operand at zero."""
    dtype, x = b.out(node).dtype, b.arg(node, 0)
    above, zero = (b.test(op, x, 0, at=ir.compute_type(dtype)) for op in ("gt", "eq"))
    step = b.pointwise("where", above, 1.0, 0.0, dtype=dtype)
    return b.result(node, "where", zero, b.arg(node, 1), step)


def ldexp(b: Builder, node: Node) -> str:
    factor = b.pointwise("exp2", b.arg(node, 1), dtype=b.internal(b.out(node).dtype))
    return b.result(node, "mul", b.arg(node, 0), factor)


def polygamma(b: Builder, node: Node) -> str:
    """Lowers polygamma, whose first argument is the derivative's order."""
    return b.result(node, "polygamma", b.arg(node, 1), float(b.arg(node, 0)))


def clamp(b: Builder, node: Node) -> str:
    dtype, x = b.out(node).dtype, b.arg(node, 0)
    low, high = b.arg(node, 1, "min"), b.arg(node, 2, "max")
    if low is not None:
        x = b.pointwise("maximum", x, low, dtype=dtype, name=None if high is not None else node.name)
    return b.result(node, "minimum", x, high) if high is not None else str(x)


def hardtanh(b: Builder, node: Node) -> str:
    dtype, low, high = b.out(node).dtype, b.arg(node, 1, "min_val", -1.0), b.arg(node, 2, "max_val", 1.0)
    return b.result(node, "minimum", b.pointwise("maximum", b.arg(node, 0), low, dtype=dtype), high)


def threshold(b: Builder, node: Node) -> str:
    x, least, other = b.args(node, 0, 1, 2)
    return b.result(node, "where", b.test("gt", x, least, at=ir.compute_type(b.out(node).dtype)), x, other)


def where(b: Builder, node: Node) -> str:
    if len(node.args) < 3:
        raise CantLower("depends on the data's count")
    return b.result(node, "where", *b.args(node, 0, 1, 2))


def masked_fill(b: Builder, node: Node) -> str:
    x, mask, value = b.args(node, 0, 1, 2)
    return b.finish(node, b.pointwise("where", mask, value, x, dtype=b.out(node).dtype))


def addcmul(b: Builder, node: Node) -> str:
    """Lowers addcmul and addcdiv."""
    op = "div" if "addcdiv" in node.op else "mul"
    product = b.pointwise(op, *b.args(node, 1, 2), dtype=b.internal(b.out(node).dtype))
    return b.result(node, "add", b.arg(node, 0), _scaled(b, node, product, b.arg(node, 3, "value", 1)))


def to(b: Builder, node: Node) -> str:
    return b.cast(b.arg(node, 0), b.out(node).dtype, node.name)


def alias(b: Builder, node: Node) -> str:
    return str(b.arg(node, 0))


def layout_copy(b: Builder, node: Node) -> str:
    """Lowers the algebra's `layout.copy`: a copy in the strides of the node's result."""
    return b.result(node, "copy", b.arg(node, 0))


def dropout(b: Builder, node: Node) -> str:
    if b.arg(node, 2, "train", False):
        raise CantLower("is stochastic")
    return str(b.arg(node, 0))


def ignore(b: Builder, node: Node) -> None:
    """Ignores assertions about metadata, which the captured shapes fulfil."""


TABLE: dict[str, Lowering] = {
    **_named("UNARY", _unary), **_named("COMPARISONS", _compare), **_named("LOGICAL", _logical),
    **_named("BITWISE", _bitwise), **_named("BINARY", _binary),
    "nextafter": nextafter, "add": add, "sub": sub, "subtract": sub, "rsub": sub, "div": div, "divide": div,
    "true_divide": div, "pow": power, "gelu": gelu, "leaky_relu": _with_numbers("leaky_relu", negative_slope=0.01),
    "prelu": prelu, "elu": elu, "celu": celu, "softplus": _with_numbers("softplus", beta=1.0, threshold=20.0),
    "clamp": clamp, "clip": clamp, "clamp_min": _binary("maximum", "min"), "clamp_max": _binary("minimum", "max"),
    "hardtanh": hardtanh, "threshold": threshold, "where": where, "heaviside": heaviside,
    "ldexp": ldexp, "polygamma": polygamma, "masked_fill": masked_fill, "addcmul": addcmul,
    "addcdiv": addcmul, "to": to, "_to_copy": to, "type_as": to, "clone": alias, "contiguous": alias, "detach": alias,
    "alias": alias, "lift_fresh_copy": alias, "lift_fresh": alias, "dropout": dropout, "feature_dropout": dropout,
    "_assert_tensor_metadata": ignore, "layout.copy": layout_copy,
}  # fmt: skip
