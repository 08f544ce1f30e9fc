"""Element-wise operators. Types follow PyTorch's promotion: the captured result type decides what is computed in."""

from __future__ import annotations

import math
from typing import Any

from cuda_agent.core.graph import Node
from cuda_agent.playbook import ir
from cuda_agent.playbook.lower import Builder, CantLower, Lowering

_UNARY = (
    "neg abs exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sigmoid tanh erf erfc sin cos tan atan asin "
    "acos sinh cosh asinh acosh atanh floor ceil trunc round sign relu square selu silu mish hardswish hardsigmoid "
    "relu6 softsign log_sigmoid logical_not bitwise_not isnan isinf isfinite signbit lgamma erfinv sinc "
    "i0 digamma special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1 special_i0e special_i1 "
    "special_i1e special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0 "
    "special_modified_bessel_k1 special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1 "
    "special_spherical_bessel_j0 special_airy_ai special_erfcx special_log_ndtr special_ndtri"
)
_ALIASES = ("negative", "absolute", "fix", "sgn")
_RENAMED = {"log_sigmoid": "logsigmoid", "logical_not": "not", "bitwise_not": "bitnot", "fix": "trunc",
            "negative": "neg", "absolute": "abs", "sgn": "sign", "special_modified_bessel_i0": "i0",
            "special_modified_bessel_i1": "i1", "special_modified_bessel_k0": "k0", "special_modified_bessel_k1": "k1",
            "special_scaled_modified_bessel_k0": "k0e", "special_scaled_modified_bessel_k1": "k1e",
            "special_spherical_bessel_j0": "spherical_j0"}  # fmt: skip
_COMPARE = {"eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge", "less": "lt", "greater": "gt",
            "less_equal": "le", "greater_equal": "ge", "not_equal": "ne"}  # fmt: skip
_LOGICAL = {"logical_and": "and", "logical_or": "or", "logical_xor": "xor"}
_BITWISE = {"bitwise_and": "bitand", "bitwise_or": "bitor", "bitwise_xor": "bitxor",
            "__and__": "bitand", "__or__": "bitor", "__xor__": "bitxor"}  # fmt: skip
_BINARY = {"mul": "mul", "multiply": "mul", "maximum": "maximum", "minimum": "minimum", "atan2": "atan2",
           "fmod": "fmod", "copysign": "copysign", "remainder": "remainder", "fmax": "fmax",
           "fmin": "fmin", "igamma": "igamma", "igammac": "igammac", "special_gammainc": "igamma",
           "special_gammaincc": "igammac", "special_zeta": "zeta"}  # fmt: skip


def common_dtype(b: Builder, args: list[Any]) -> str:
    """PyTorch's promotion over tensors and Python scalars."""
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
        meta, x = b.out(node), b.arg(node, 0)
        source = b.values[x].dtype
        if op in ("floor", "ceil", "trunc", "round") and source not in ir.FLOAT_DTYPES:
            return b.cast(x, meta.dtype, node.name)
        decimals = int(b.arg(node, 9, "decimals", 0)) if op == "round" else 0
        if decimals:
            there, back = ("mul", "div") if decimals > 0 else ("div", "mul")
            shifted = b.pointwise(there, x, 10.0 ** abs(decimals), dtype=b.internal(meta.dtype))
            whole = b.pointwise("round", shifted, dtype=b.internal(meta.dtype))
            return b.pointwise(back, whole, 10.0 ** abs(decimals), dtype=meta.dtype, name=node.name)
        if op in ("isnan", "isinf", "isfinite", "signbit", "not"):
            at = ir.compute_type(source)
            return b.pointwise(
                op, x, dtype="bool", at=at if at in ("f32", "f64") or op == "not" else "f32", name=node.name
            )
        if op == "bitnot" and source == "bool":
            return b.pointwise("not", x, dtype="bool", name=node.name)
        return b.pointwise(op, x, dtype=meta.dtype, name=node.name)

    return lower


def _binary(op: str) -> Lowering:
    def lower(b: Builder, node: Node) -> str:
        return b.pointwise(op, b.arg(node, 0), b.arg(node, 1, "other"), dtype=b.out(node).dtype, name=node.name)

    return lower


def _compare(op: str) -> Lowering:
    def lower(b: Builder, node: Node) -> str:
        args = [b.arg(node, 0), b.arg(node, 1, "other")]
        at = ir.compute_type(common_dtype(b, args))
        return b.pointwise(op, *args, dtype="bool", at="i32" if at == "b" else at, name=node.name)

    return lower


def _logical(op: str) -> Lowering:
    def lower(b: Builder, node: Node) -> str:
        return b.pointwise(op, b.arg(node, 0), b.arg(node, 1), dtype="bool", at="b", name=node.name)

    return lower


def _bitwise(op: str) -> Lowering:
    def lower(b: Builder, node: Node) -> str:
        dtype = b.out(node).dtype
        kind = {"bitand": "and", "bitor": "or", "bitxor": "xor"}[op] if dtype == "bool" else op
        return b.pointwise(kind, b.arg(node, 0), b.arg(node, 1), dtype=dtype, name=node.name)

    return lower


def _scaled(b: Builder, x: Any, alpha: Any, dtype: str) -> Any:
    if alpha in (1, None):
        return x
    if not isinstance(x, str):
        return x * alpha
    return b.pointwise("mul", x, alpha, dtype=dtype)


def add(b: Builder, node: Node) -> str:
    dtype = b.out(node).dtype
    x, y = b.arg(node, 0), b.arg(node, 1)
    alpha = b.arg(node, 2, "alpha", 1)
    if dtype == "bool":
        return b.pointwise("or", x, y, dtype=dtype, name=node.name)
    return b.pointwise("add", x, _scaled(b, y, alpha, b.internal(dtype)), dtype=dtype, name=node.name)


def sub(b: Builder, node: Node) -> str:
    dtype = b.out(node).dtype
    x, y = b.arg(node, 0), b.arg(node, 1)
    return b.pointwise(
        "sub", x, _scaled(b, y, b.arg(node, 2, "alpha", 1), b.internal(dtype)), dtype=dtype, name=node.name
    )


def rsub(b: Builder, node: Node) -> str:
    dtype = b.out(node).dtype
    x, y = b.arg(node, 0), b.arg(node, 1)
    return b.pointwise(
        "sub", y, _scaled(b, x, b.arg(node, 2, "alpha", 1), b.internal(dtype)), dtype=dtype, name=node.name
    )


def div(b: Builder, node: Node) -> str:
    dtype, mode = b.out(node).dtype, b.arg(node, 9, "rounding_mode")
    x, y = b.arg(node, 0), b.arg(node, 1)
    if mode is None:
        if not isinstance(y, str) and y != 0 and ir.compute_type(dtype) == "f32":
            inverse = 1.0 / y
            if math.frexp(y)[0] in (0.5, -0.5):
                return b.pointwise("mul", x, inverse, dtype=dtype, name=node.name)
        return b.pointwise("div", x, y, dtype=dtype, name=node.name)
    if mode == "floor":
        return b.pointwise("floordiv", x, y, dtype=dtype, name=node.name)
    if ir.compute_type(dtype) in ("f32", "f64"):
        return b.pointwise("trunc", b.pointwise("div", x, y, dtype=b.internal(dtype)), dtype=dtype, name=node.name)
    return b.pointwise("div", x, y, dtype=dtype, name=node.name)


def floor_divide(b: Builder, node: Node) -> str:
    return b.pointwise("floordiv", b.arg(node, 0), b.arg(node, 1), dtype=b.out(node).dtype, name=node.name)


def nextafter(b: Builder, node: Node) -> str:
    dtype = b.out(node).dtype
    if b.internal(dtype) != dtype:
        raise CantLower("neighbours of half precision")
    return b.pointwise("nextafter", b.arg(node, 0), b.arg(node, 1), dtype=dtype, name=node.name)


def power(b: Builder, node: Node) -> str:
    """Whole and half exponents become products and roots."""
    dtype = b.out(node).dtype
    x, y = b.arg(node, 0), b.arg(node, 1)
    inner = b.internal(dtype)
    if isinstance(y, str) or not isinstance(x, str):
        return b.pointwise("pow", x, y, dtype=dtype, name=node.name)
    if y == 1:
        return b.cast(x, dtype, node.name)
    if y == 2:
        return b.pointwise("square", x, dtype=dtype, name=node.name)
    if y in (3, 4):
        two = b.pointwise("square", x, dtype=inner)
        return b.pointwise("mul", two, x if y == 3 else two, dtype=dtype, name=node.name)
    if ir.compute_type(dtype) in ("f32", "f64"):
        if y in (0.5, -0.5, -1):
            op = {0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}[y]
            return b.pointwise(op, x, dtype=dtype, name=node.name)
        if y == -2:
            return b.pointwise("reciprocal", b.pointwise("square", x, dtype=inner), dtype=dtype, name=node.name)
    return b.pointwise("pow", x, y, dtype=dtype, name=node.name)


def gelu(b: Builder, node: Node) -> str:
    op = "gelu_tanh" if b.arg(node, 1, "approximate", "none") == "tanh" else "gelu"
    return b.pointwise(op, b.arg(node, 0), dtype=b.out(node).dtype, name=node.name)


def leaky_relu(b: Builder, node: Node) -> str:
    dtype, x = b.out(node).dtype, b.arg(node, 0)
    slope = float(b.arg(node, 1, "negative_slope", 0.01))
    return b.pointwise("leaky_relu", x, slope, dtype=dtype, name=node.name)


def prelu(b: Builder, node: Node) -> str:
    dtype, x, weight = b.out(node).dtype, b.arg(node, 0), b.arg(node, 1)
    shape = b.values[x].shape
    if b.values[weight].shape and len(shape) > 1:
        count = ir.numel(b.values[weight].shape)
        weight = b.reshape(weight, (count, *([1] * (len(shape) - 2))))
    return b.pointwise("leaky_relu", x, weight, dtype=dtype, name=node.name)


def elu(b: Builder, node: Node) -> str:
    dtype, x = b.out(node).dtype, b.arg(node, 0)
    alpha, scale, inner = (float(b.arg(node, i, n, 1.0)) for i, n in ((1, "alpha"), (2, "scale"), (3, "input_scale")))
    return b.pointwise("elu", x, alpha * scale, scale, inner, dtype=dtype, name=node.name)


def celu(b: Builder, node: Node) -> str:
    dtype, x, alpha = b.out(node).dtype, b.arg(node, 0), float(b.arg(node, 1, "alpha", 1.0))
    return b.pointwise("elu", x, alpha, 1.0, 1.0 / alpha, dtype=dtype, name=node.name)


def softplus(b: Builder, node: Node) -> str:
    dtype, x = b.out(node).dtype, b.arg(node, 0)
    return b.pointwise(
        "softplus",
        x,
        float(b.arg(node, 1, "beta", 1.0)),
        float(b.arg(node, 2, "threshold", 20.0)),
        dtype=dtype,
        name=node.name,
    )


def heaviside(b: Builder, node: Node) -> str:
    """1 above zero, 0 below, the second operand's value at zero."""
    dtype, x = b.out(node).dtype, b.arg(node, 0)
    at = ir.compute_type(dtype)
    above, zero = (b.pointwise(op, x, 0, dtype="bool", at=at) for op in ("gt", "eq"))
    step = b.pointwise("where", above, 1.0, 0.0, dtype=dtype)
    return b.pointwise("where", zero, b.arg(node, 1), step, dtype=dtype, name=node.name)


def ldexp(b: Builder, node: Node) -> str:
    dtype = b.out(node).dtype
    power = b.pointwise("exp2", b.arg(node, 1), dtype=b.internal(dtype))
    return b.pointwise("mul", b.arg(node, 0), power, dtype=dtype, name=node.name)


def polygamma(b: Builder, node: Node) -> str:
    """The derivative's order comes first."""
    return b.pointwise("polygamma", b.arg(node, 1), float(b.arg(node, 0)), dtype=b.out(node).dtype, name=node.name)


def clamp(b: Builder, node: Node) -> str:
    dtype, x = b.out(node).dtype, b.arg(node, 0)
    low, high = b.arg(node, 1, "min"), b.arg(node, 2, "max")
    if low is not None:
        x = b.pointwise("maximum", x, low, dtype=dtype, name=None if high is not None else node.name)
    return b.pointwise("minimum", x, high, dtype=dtype, name=node.name) if high is not None else str(x)


def clamp_min(b: Builder, node: Node) -> str:
    return b.pointwise("maximum", b.arg(node, 0), b.arg(node, 1, "min"), dtype=b.out(node).dtype, name=node.name)


def clamp_max(b: Builder, node: Node) -> str:
    return b.pointwise("minimum", b.arg(node, 0), b.arg(node, 1, "max"), dtype=b.out(node).dtype, name=node.name)


def hardtanh(b: Builder, node: Node) -> str:
    dtype, low, high = b.out(node).dtype, b.arg(node, 1, "min_val", -1.0), b.arg(node, 2, "max_val", 1.0)
    return b.pointwise(
        "minimum", b.pointwise("maximum", b.arg(node, 0), low, dtype=dtype), high, dtype=dtype, name=node.name
    )


def threshold(b: Builder, node: Node) -> str:
    dtype, x = b.out(node).dtype, b.arg(node, 0)
    keep = b.pointwise("gt", x, b.arg(node, 1), dtype="bool", at=ir.compute_type(dtype))
    return b.pointwise("where", keep, x, b.arg(node, 2), dtype=dtype, name=node.name)


def where(b: Builder, node: Node) -> str:
    if len(node.args) < 3:
        raise CantLower("depends on the data's count")
    args = [b.arg(node, i) for i in range(3)]
    return b.pointwise("where", *args, dtype=b.out(node).dtype, name=node.name)


def masked_fill(b: Builder, node: Node) -> str:
    x, mask, value = (b.arg(node, i) for i in range(3))
    return b.finish(node, b.pointwise("where", mask, value, x, dtype=b.out(node).dtype))


def addcmul(b: Builder, node: Node) -> str:
    dtype = b.out(node).dtype
    op = "div" if "addcdiv" in node.op else "mul"
    product = b.pointwise(op, b.arg(node, 1), b.arg(node, 2), dtype=b.internal(dtype))
    return b.pointwise(
        "add",
        b.arg(node, 0),
        _scaled(b, product, b.arg(node, 3, "value", 1), b.internal(dtype)),
        dtype=dtype,
        name=node.name,
    )


def to(b: Builder, node: Node) -> str:
    return b.cast(b.arg(node, 0), b.out(node).dtype, node.name)


def alias(b: Builder, node: Node) -> str:
    return str(b.arg(node, 0))


def layout_copy(b: Builder, node: Node) -> str:
    """A value of its own in memory, in the strides of the node's result."""
    return b.pointwise("copy", b.arg(node, 0), dtype=b.out(node).dtype, name=node.name)


def dropout(b: Builder, node: Node) -> str:
    if b.arg(node, 2, "train", False):
        raise CantLower("is stochastic")
    return str(b.arg(node, 0))


def ignore(b: Builder, node: Node) -> None:
    """Assertions about metadata, which the captured shapes hold already."""


TABLE: dict[str, Lowering] = {
    **{name: _unary(_RENAMED.get(name, name.removeprefix("special_"))) for name in (*_UNARY.split(), *_ALIASES)},
    **{name: _compare(op) for name, op in _COMPARE.items()},
    **{name: _logical(op) for name, op in _LOGICAL.items()},
    **{name: _bitwise(op) for name, op in _BITWISE.items()},
    **{name: _binary(op) for name, op in _BINARY.items()},
    "nextafter": nextafter,
    "add": add, "sub": sub, "subtract": sub, "rsub": rsub, "div": div, "divide": div, "true_divide": div,
    "floor_divide": floor_divide, "pow": power, "gelu": gelu, "leaky_relu": leaky_relu, "prelu": prelu, "elu": elu,
    "celu": celu, "softplus": softplus, "clamp": clamp, "clip": clamp, "clamp_min": clamp_min, "clamp_max": clamp_max,
    "hardtanh": hardtanh, "threshold": threshold, "where": where,
    "heaviside": heaviside, "ldexp": ldexp, "polygamma": polygamma, "masked_fill": masked_fill, "addcmul": addcmul,
    "addcdiv": addcmul, "to": to, "_to_copy": to, "type_as": to, "clone": alias, "contiguous": alias, "detach": alias,
    "alias": alias, "lift_fresh_copy": alias, "lift_fresh": alias, "dropout": dropout, "feature_dropout": dropout,
    "_assert_tensor_metadata": ignore, "layout.copy": layout_copy,
}  # fmt: skip
