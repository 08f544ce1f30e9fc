"""Lowers element-wise operators. The captured result type decides the compute type."""

import math
from typing import Any

from cuda_agent.core.graph import Node
from cuda_agent.playbook import ir
from cuda_agent.playbook.lower import Builder


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
        if not isinstance(scalar, str):
            own = "bool" if isinstance(scalar, bool) else "int64" if isinstance(scalar, int) else "float32"
            result = own if _category(own) > _category(result) else result
    return result


def _category(dtype: str) -> int:
    return 0 if dtype == "bool" else 2 if dtype in ir.FLOAT_DTYPES else 1


def unary(b: Builder, node: Node, op: str) -> str:
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


def binary(b: Builder, node: Node, op: str) -> str:
    return b.result(node, op, b.arg(node, 0), b.arg(node, 1, "other"))


def compare(b: Builder, node: Node, op: str) -> str:
    args = [b.arg(node, 0), b.arg(node, 1, "other")]
    common = common_dtype(b, args)
    args, at = [arg if isinstance(arg, str) else ir.as_scalar_of(arg, common) for arg in args], ir.compute_type(common)
    return b.pointwise(op, *args, dtype="bool", at="i32" if at == "b" else at, name=node.name)


def logical(b: Builder, node: Node, op: str) -> str:
    return b.pointwise(op, *b.args(node, 0, 1), dtype="bool", at="b", name=node.name)


def bitwise(b: Builder, node: Node, op: str) -> str:
    return b.result(node, op.removeprefix("bit") if b.out(node).dtype == "bool" else op, *b.args(node, 0, 1))


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


def lerp(b: Builder, node: Node) -> str:
    """Lowers lerp. From a weight of a half on it starts at the other end, so that a weight of 1 gives that."""
    x, y, weight = b.args(node, 0, 1, 2)
    inner = b.typed(b.internal(b.out(node).dtype))
    step = inner("sub", y, x)
    if not isinstance(weight, str):
        if abs(weight) < 0.5:
            return b.result(node, "add", x, inner("mul", step, weight))
        return b.result(node, "sub", y, inner("mul", step, 1.0 - weight))
    near, far = inner("add", x, inner("mul", step, weight)), inner("mul", step, inner("sub", 1.0, weight))
    is_near = b.test("lt", inner("abs", weight), 0.5, at=ir.compute_type(b.out(node).dtype))
    return b.result(node, "where", is_near, near, inner("sub", y, far))


def prelu(b: Builder, node: Node) -> str:
    x, weight = b.args(node, 0, 1)
    if b.rank(weight) and b.rank(x) > 1:
        weight = b.reshape(weight, (ir.numel(b.shape_of(weight)), *([1] * (b.rank(x) - 2))))
    return b.result(node, "leaky_relu", x, weight)


def masked_fill(b: Builder, node: Node) -> str:
    x, mask, value = b.args(node, 0, 1, 2)
    return b.finish(node, b.pointwise("where", mask, value, x, dtype=b.out(node).dtype))


def glu(b: Builder, node: Node) -> str:
    x, meta = b.arg(node, 0), b.out(node)
    dim = b.arg(node, 1, "dim", -1) % b.rank(x)
    size = meta.shape[dim]
    gate = b.slice(x, dim, size, size, name=b.fresh("half"))
    gate = b.pointwise("sigmoid", gate, dtype=b.internal(meta.dtype))
    return b.result(node, "mul", b.slice(x, dim, 0, size, name=b.fresh("half")), gate)


def ignore(b: Builder, node: Node) -> None:
    """Ignores assertions about metadata, which the captured shapes fulfil."""
