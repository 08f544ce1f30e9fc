"""Lowers reductions and operators built on them: sums, means, extrema, variances, norms, softmax."""

import math
from collections.abc import Sequence
from typing import Any

from cuda_agent.core.graph import Node
from cuda_agent.playbook import ir
from cuda_agent.playbook.lower import Builder, CantLower


def dims_of(b: Builder, x: str, dims: Any) -> tuple[int, ...]:
    """Returns the argument `dim` as sorted dimensions. None and [] mean all."""
    rank = b.rank(x)
    if dims is None or dims == []:
        return tuple(range(rank))
    items = [dims] if isinstance(dims, int) else list(dims)
    return tuple(sorted({int(d) % max(rank, 1) for d in items})) if rank else ()


def _operand(b: Builder, node: Node, dim: int = 1, keepdim: int = 2) -> tuple[str, tuple[int, ...], bool]:
    """Returns the operand, and the arguments `dim` and `keepdim` at these positions."""
    x = b.arg(node, 0)
    return x, dims_of(b, x, b.arg(node, dim, "dim")), bool(b.arg(node, keepdim, "keepdim", False))


def _count(b: Builder, x: str, dims: Sequence[int]) -> int:
    return math.prod(b.shape_of(x)[d] for d in dims)


def mean_of(b: Builder, x: str, dims: Sequence[int], *, keep: bool) -> str:
    """Adds the mean in the accumulation type."""
    total = b.reduce("sum", x, dims, dtype=b.inner(x), keep=keep)
    return shared(b, total, _count(b, x, dims), b.inner(x))


def shared(b: Builder, total: str, count: float, dtype: str) -> str:
    """Adds total / count. It isn't a product with the inverse, since the mean of equal values must be that value."""
    if math.frexp(count)[0] == 0.5:
        return b.pointwise("mul", total, 1.0 / count, dtype=dtype)
    return b.pointwise("div", total, float(count), dtype=dtype)


def variance_of(b: Builder, x: str, dims: Sequence[int], correction: float, *, keep: bool) -> str:
    """Adds Σ (x - mean)² / (n - correction) in the accumulation type."""
    free = _count(b, x, dims) - correction
    if free <= 0:
        raise CantLower("has no degrees of freedom")
    return b.pointwise("mul", b.reduce("m2", x, dims, dtype=b.inner(x), keep=keep), 1.0 / free, dtype=b.inner(x))


def sum_(b: Builder, node: Node) -> str:
    (x, dims, keep), inner = _operand(b, node), b.internal(b.out(node).dtype)
    x = b.cast(x, inner) if b.values[x].dtype not in ir.FLOAT_DTYPES else x
    return b.finish(node, b.reduce("sum", x, dims, dtype=inner, keep=keep))


def mean(b: Builder, node: Node) -> str:
    x, dims, keep = _operand(b, node)
    if b.values[x].dtype not in ir.FLOAT_DTYPES:
        x = b.cast(x, b.internal(b.out(node).dtype))
    return b.finish(node, mean_of(b, x, dims, keep=keep))


def extreme(b: Builder, node: Node, kind: str) -> str:
    x, dims, keep = _operand(b, node)
    return b.finish(node, b.reduce(kind, x, dims, dtype=b.values[x].dtype, keep=keep))


def max_min(b: Builder, node: Node, kind: str) -> str | tuple[str | None, ...]:
    """Lowers max(x), max(x, dim) and max(x, y)."""
    other = b.arg(node, 1, "dim")
    if isinstance(other, str):
        return b.result(node, f"{kind}imum", b.arg(node, 0), other)
    x, dims, keep = _operand(b, node)
    result = b.reduce(kind, x, dims, dtype=b.values[x].dtype, keep=keep)
    if other is None:
        return b.finish(node, result)
    return result, b.cast(place_of(b, kind, x, dims[0], keep=keep), "int64") if dims else None


def place_of(b: Builder, kind: str, x: str, dim: int, *, keep: bool) -> str:
    """Adds the index along `dim` of the first maximum or minimum, or of the first NaN."""
    shape, dtype = b.shape_of(x), b.values[x].dtype
    inner = "int32" if shape[dim] < 1 << 31 else "int64"
    at = "i32" if dtype == "bool" else ir.compute_type(dtype)
    found = b.test("eq", x, b.reduce(kind, x, (dim,), dtype=dtype, keep=True), at=at)
    if at in ("f32", "f64"):
        found = b.test("or", found, b.test("isnan", x, at=at))
    place = b.add(ir.Iota(b.fresh("place"), shape, inner, dim))
    # The last index stands for all others, so rounding can't make an index beyond the end.
    place = b.pointwise("where", found, place, shape[dim] - 1, dtype=inner)
    return b.reduce("min", place, (dim,), dtype=inner, keep=keep)


def place_of_extreme(b: Builder, node: Node, kind: str) -> str:
    """Lowers argmax and argmin."""
    x, dim, keep = b.arg(node, 0), b.arg(node, 1, "dim"), bool(b.arg(node, 2, "keepdim", False))
    shape = b.shape_of(x)
    if dim is None or not shape:
        # The index is that of the flattened tensor.
        return b.finish(node, place_of(b, kind, b.reshape(x, (ir.numel(shape),)), 0, keep=False))
    return b.finish(node, place_of(b, kind, x, int(dim) % len(shape), keep=keep))


def aminmax(b: Builder, node: Node) -> tuple[str, ...]:
    x, dims, keep = _operand(b, node, 9, 9)
    return tuple(b.reduce(kind, x, dims, dtype=b.values[x].dtype, keep=keep) for kind in ("min", "max"))


def dist(b: Builder, node: Node) -> str:
    """Lowers dist, the norm of x - y."""
    x, y, order = *b.args(node, 0, 1), b.arg(node, 2, "p", 2)
    apart = b.pointwise("sub", x, y, dtype=b.internal(b.out(node).dtype))
    return b.finish(node, norm_of(b, apart, float(order), range(b.rank(apart)), keep=False))


def prod(b: Builder, node: Node) -> str:
    x, dim, inner = b.arg(node, 0), b.arg(node, 1, "dim"), b.internal(b.out(node).dtype)
    dims = dims_of(b, x, dim if isinstance(dim, int) else None)
    keep = bool(b.arg(node, 2, "keepdim", False))
    return b.finish(node, b.reduce("prod", b.cast(x, inner), dims, dtype=inner, keep=keep))


def any_all(b: Builder, node: Node, kind: str) -> str:
    x, dims, keep = _operand(b, node)
    if b.values[x].dtype != "bool":
        x = b.test("ne", x, 0, at=ir.compute_type(b.values[x].dtype))
    return b.finish(node, b.reduce(kind, x, dims, dtype="bool", keep=keep))


def count_nonzero(b: Builder, node: Node) -> str:
    x = b.arg(node, 0)
    kept = b.test("ne", x, 0, at=ir.compute_type(b.values[x].dtype))
    dims = dims_of(b, x, b.arg(node, 1, "dim"))
    return b.finish(node, b.reduce("sum", b.cast(kept, "int64"), dims, dtype="int64"))


def _variance(b: Builder, node: Node) -> tuple[str, str, tuple[int, ...], bool]:
    """Adds the variance or standard deviation of (x, unbiased), (x, dim, unbiased, keepdim) or (x, dim, *, correction,
    keepdim). Returns it, x, the dimensions and `keepdim`."""
    x, given = b.arg(node, 0), None
    if node.op.endswith(".default"):
        dims, keep = dims_of(b, x, None), False
        correction = float(bool(b.arg(node, 1, "unbiased", True)))
    elif node.op.endswith(".correction"):
        (_, dims, keep), given = _operand(b, node, 1, 9), b.arg(node, 9, "correction")
        correction = 1.0 if given is None else float(given)
    else:
        (_, dims, keep), correction = _operand(b, node, 1, 3), float(bool(b.arg(node, 2, "unbiased", True)))
    result = variance_of(b, x, dims, correction, keep=keep)
    if "std" in node.op:
        result = b.pointwise("sqrt", result, dtype=b.values[result].dtype)
    return result, x, dims, keep


def var(b: Builder, node: Node) -> str:
    return b.finish(node, _variance(b, node)[0])


def var_mean(b: Builder, node: Node) -> tuple[str, ...]:
    first, x, dims, keep = _variance(b, node)
    dtype = b.out(node).dtype
    return b.cast(first, dtype, b.fresh(node.name)), b.cast(mean_of(b, x, dims, keep=keep), dtype, b.fresh(node.name))


def exponential_sums(b: Builder, x: str, dims: Sequence[int], *, keep: bool) -> tuple[str, str]:
    """Adds the maximum and log Σ exp(x - max) in the accumulation type. Their sum would lose what the second one adds
    to a large maximum."""
    top, total = (b.reduce(kind, x, dims, dtype=b.inner(x), keep=keep) for kind in ("max", "expsum"))
    return top, b.pointwise("log", total, dtype=b.inner(x))


def logsumexp(b: Builder, node: Node) -> str:
    """Lowers logsumexp, which is the maximum where that is infinite."""
    x, dims, keep = _operand(b, node)
    top, rest = exponential_sums(b, x, dims, keep=keep)
    infinite, inner = b.test("isinf", top, at=ir.compute_type(b.inner(x))), b.typed(b.inner(x))
    return b.finish(node, inner("where", infinite, top, inner("add", rest, top)))


def softmax(b: Builder, node: Node) -> str:
    """Lowers softmax: exp(x - max) / Σ exp(x - max). The safe one is 0 where all x are -inf."""
    x, dims = b.arg(node, 0), dims_of(b, b.arg(node, 0), b.arg(node, 1, "dim"))
    inner = b.typed(b.inner(x))
    top = b.reduce("max", x, dims, dtype=b.inner(x), keep=True)
    total = inner("reciprocal", b.reduce("expsum", x, dims, dtype=b.inner(x), keep=True))
    result = inner("mul", inner("exp", inner("sub", x, top)), total)
    if "safe" in node.op:
        result = inner("where", b.test("eq", top, -math.inf, at=ir.compute_type(b.inner(x))), 0.0, result)
    return b.finish(node, result)


def log_softmax(b: Builder, node: Node) -> str:
    x, dims = b.arg(node, 0), dims_of(b, b.arg(node, 0), b.arg(node, 1, "dim"))
    top, rest = exponential_sums(b, x, dims, keep=True)
    inner = b.typed(b.inner(x))
    return b.finish(node, inner("sub", inner("sub", x, top), rest))


def vector_norm(b: Builder, node: Node) -> str:
    """Lowers linalg_vector_norm(x, ord, dim, keepdim) and norm(x, p, dim, keepdim)."""
    (x, dims, keep), order = _operand(b, node, 2, 3), b.arg(node, 1, "ord", 2)
    return b.finish(node, norm_of(b, x, 2.0 if order is None else float(order), dims, keep=keep))


def norm_of(b: Builder, x: str, order: float, dims: Sequence[int], *, keep: bool) -> str:
    """Adds the vector norm of an order."""
    dtype = b.inner(x)
    inner = b.typed(dtype)
    if order == 2:
        return inner("sqrt", b.reduce("sum", inner("square", x), dims, dtype=dtype, keep=keep))
    size = inner("abs", x)
    if math.isinf(order):
        return b.reduce("max" if order > 0 else "min", size, dims, dtype=dtype, keep=keep)
    if order == 0:
        size = inner("where", b.test("ne", size, 0.0, at=ir.compute_type(dtype)), 1.0, 0.0)
    if order in (0, 1):
        return b.reduce("sum", size, dims, dtype=dtype, keep=keep)
    return inner("pow", b.reduce("sum", inner("pow", size, order), dims, dtype=dtype, keep=keep), 1.0 / order)


def embedding_bag(b: Builder, node: Node) -> tuple[str | None, ...]:
    """Lowers the sum, mean or maximum over bags of rows of a table. All bags must have the same size, as those of a
    matrix of indices have."""
    table, indices = b.args(node, 0, 1)
    kind = ("sum", "mean", "max")[int(b.arg(node, 4, "mode", 0))]
    factors, padding = b.arg(node, 6, "per_sample_weights"), b.arg(node, 8, "padding_idx", -1)
    (count,), meta = b.shape_of(indices), b.out(node)
    bags = meta.shape[0]
    size = count // bags
    if padding >= 0 or count % bags or b.constant(node, 2) != tuple(range(0, count, size)):
        raise CantLower("has bags whose sizes are inputs")
    rows = b.fresh("rows")
    body = b.take(table, 0, b.reshape(indices, (bags, size)), name=rows)
    inner = b.values[table].dtype if kind == "max" else b.inner(table)
    if factors is not None:
        body = b.pointwise("mul", body, b.reshape(factors, (bags, size, 1)), dtype=inner)
    result = mean_of(b, body, [1], keep=False) if kind == "mean" else b.reduce(kind, body, [1], dtype=inner)
    return (b.cast(result, meta.dtype), None, None, None)
