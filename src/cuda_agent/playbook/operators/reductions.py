"""Reductions and what is made of them: sums, means, extrema, variances, norms, softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from cuda_agent.core.graph import Node
from cuda_agent.playbook import ir
from cuda_agent.playbook.lower import Builder, CantLower, Lowering
from cuda_agent.playbook.operators.views import take_along


def dims_of(b: Builder, x: str, dims: Any) -> tuple[int, ...]:
    """The argument `dim` as sorted dimensions; None and [] mean all."""
    rank = len(b.values[x].shape)
    if dims is None or dims == []:
        return tuple(range(rank))
    items = [dims] if isinstance(dims, int) else list(dims)
    return tuple(sorted({int(d) % max(rank, 1) for d in items})) if rank else ()


def accumulate(b: Builder, x: str, dtype: str) -> str:
    """The dtype that sums run in: float32 for 16-bit floats."""
    source = b.values[x].dtype
    return b.internal(dtype if dtype in ir.FLOAT_DTYPES and source not in ir.FLOAT_DTYPES else source)


def mean_of(b: Builder, x: str, dims: Sequence[int], *, keep: bool) -> str:
    """Mean in the accumulation type."""
    count = math.prod(b.values[x].shape[d] for d in dims)
    inner = b.internal(b.values[x].dtype)
    total = b.reduce("sum", x, dims, dtype=inner, keep=keep)
    return b.pointwise("mul", total, 1.0 / count, dtype=inner)


def variance_of(b: Builder, x: str, dims: Sequence[int], correction: float, *, keep: bool) -> str:
    """Σ (x - mean)² / max(0, n - correction) in the accumulation type."""
    count = math.prod(b.values[x].shape[d] for d in dims)
    inner = b.internal(b.values[x].dtype)
    free = count - correction
    if free <= 0:
        raise CantLower("has no degrees of freedom")
    return b.pointwise("mul", b.reduce("m2", x, dims, dtype=inner, keep=keep), 1.0 / free, dtype=inner)


def sum_(b: Builder, node: Node) -> str:
    meta, x = b.out(node), b.arg(node, 0)
    dims, keep = dims_of(b, x, b.arg(node, 1, "dim")), bool(b.arg(node, 2, "keepdim", False))
    inner = b.internal(meta.dtype)
    return b.finish(
        node,
        b.reduce(
            "sum", b.cast(x, inner) if b.values[x].dtype not in ir.FLOAT_DTYPES else x, dims, dtype=inner, keep=keep
        ),
    )


def mean(b: Builder, node: Node) -> str:
    x = b.arg(node, 0)
    meta = b.out(node)
    if b.values[x].dtype not in ir.FLOAT_DTYPES:
        x = b.cast(x, b.internal(meta.dtype))
    dims, keep = dims_of(b, x, b.arg(node, 1, "dim")), bool(b.arg(node, 2, "keepdim", False))
    return b.finish(node, mean_of(b, x, dims, keep=keep))


def _extreme(kind: str) -> Lowering:
    def lower(b: Builder, node: Node) -> str:
        x = b.arg(node, 0)
        dims, keep = dims_of(b, x, b.arg(node, 1, "dim")), bool(b.arg(node, 2, "keepdim", False))
        return b.finish(node, b.reduce(kind, x, dims, dtype=b.values[x].dtype, keep=keep))

    return lower


def _max_min(kind: str) -> Lowering:
    """max(x), max(x, dim) without its indices, and max(x, y)."""

    def lower(b: Builder, node: Node) -> str | tuple[str | None, ...]:
        x, other = b.arg(node, 0), b.arg(node, 1, "dim")
        if isinstance(other, str):
            return b.pointwise(f"{kind}imum", x, other, dtype=b.out(node).dtype, name=node.name)
        dims, keep = dims_of(b, x, other), bool(b.arg(node, 2, "keepdim", False))
        result = b.reduce(kind, x, dims, dtype=b.values[x].dtype, keep=keep)
        if other is None:
            return b.finish(node, result)
        return result, b.cast(place_of(b, kind, x, dims[0], keep=keep), "int64") if dims else None

    return lower


def place_of(b: Builder, kind: str, x: str, dim: int, *, keep: bool) -> str:
    """Where along `dim` the first maximum or minimum is, or the first NaN."""
    source = b.values[x]
    size, dtype = source.shape[dim], source.dtype
    inner = "int32" if size < 1 << 31 else "int64"
    at = "i32" if dtype == "bool" else ir.compute_type(dtype)
    found = b.pointwise("eq", x, b.reduce(kind, x, (dim,), dtype=dtype, keep=True), dtype="bool", at=at)
    if at in ("f32", "f64"):
        found = b.pointwise("or", found, b.pointwise("isnan", x, dtype="bool", at=at), dtype="bool", at="b")
    place = b.add(ir.Iota(b.fresh("place"), source.shape, inner, dim))
    # The last place stands for all others, so that no rounding can make an index beyond the end.
    return b.reduce("min", b.pointwise("where", found, place, size - 1, dtype=inner), (dim,), dtype=inner, keep=keep)


def _arg_extreme(kind: str) -> Lowering:
    def lower(b: Builder, node: Node) -> str:
        x, dim, keep = b.arg(node, 0), b.arg(node, 1, "dim"), bool(b.arg(node, 2, "keepdim", False))
        shape = b.values[x].shape
        if dim is None:
            # Of the elements in row-major order.
            return b.finish(node, place_of(b, kind, b.reshape(x, (ir.numel(shape),)), 0, keep=False))
        if not shape:
            raise CantLower("looks for the place of a scalar")
        return b.finish(node, place_of(b, kind, x, int(dim) % len(shape), keep=keep))

    return lower


def aminmax(b: Builder, node: Node) -> tuple[str, ...]:
    x = b.arg(node, 0)
    dims, keep = dims_of(b, x, b.arg(node, 9, "dim")), bool(b.arg(node, 9, "keepdim", False))
    return tuple(b.reduce(kind, x, dims, dtype=b.values[x].dtype, keep=keep) for kind in ("min", "max"))


def dist(b: Builder, node: Node) -> str:
    """The norm of a difference, of everything."""
    x, y, order = b.arg(node, 0), b.arg(node, 1), b.arg(node, 2, "p", 2)
    apart = b.pointwise("sub", x, y, dtype=b.internal(b.out(node).dtype))
    return b.finish(node, norm_of(b, apart, float(order), range(len(b.values[apart].shape)), keep=False))


def prod(b: Builder, node: Node) -> str:
    x, meta = b.arg(node, 0), b.out(node)
    dim = b.arg(node, 1, "dim")
    dims = dims_of(b, x, dim if isinstance(dim, int) else None)
    keep = bool(b.arg(node, 2, "keepdim", False))
    return b.finish(
        node, b.reduce("prod", b.cast(x, b.internal(meta.dtype)), dims, dtype=b.internal(meta.dtype), keep=keep)
    )


def _any_all(kind: str) -> Lowering:
    def lower(b: Builder, node: Node) -> str:
        x = b.arg(node, 0)
        if b.values[x].dtype != "bool":
            x = b.pointwise("ne", x, 0, dtype="bool", at=ir.compute_type(b.values[x].dtype))
        dims, keep = dims_of(b, x, b.arg(node, 1, "dim")), bool(b.arg(node, 2, "keepdim", False))
        return b.finish(node, b.reduce(kind, x, dims, dtype="bool", keep=keep))

    return lower


def count_nonzero(b: Builder, node: Node) -> str:
    x = b.arg(node, 0)
    kept = b.pointwise("ne", x, 0, dtype="bool", at=ir.compute_type(b.values[x].dtype))
    dims = dims_of(b, x, b.arg(node, 1, "dim"))
    return b.finish(node, b.reduce("sum", b.cast(kept, "int64"), dims, dtype="int64"))


def _variance_arguments(b: Builder, node: Node) -> tuple[str, tuple[int, ...], float, bool]:
    """The three overloads: (x, unbiased), (x, dim, unbiased, keepdim), (x, dim, *, correction, keepdim)."""
    x = b.arg(node, 0)
    if node.op.endswith(".default"):
        return x, dims_of(b, x, None), float(bool(b.arg(node, 1, "unbiased", True))), False
    dims = dims_of(b, x, b.arg(node, 1, "dim"))
    if node.op.endswith(".correction"):
        correction = b.arg(node, 9, "correction")
        return x, dims, 1.0 if correction is None else float(correction), bool(b.arg(node, 9, "keepdim", False))
    return x, dims, float(bool(b.arg(node, 2, "unbiased", True))), bool(b.arg(node, 3, "keepdim", False))


def var(b: Builder, node: Node) -> str:
    x, dims, correction, keep = _variance_arguments(b, node)
    result = variance_of(b, x, dims, correction, keep=keep)
    if "std" in node.op:
        result = b.pointwise("sqrt", result, dtype=b.values[result].dtype)
    return b.finish(node, result)


def var_mean(b: Builder, node: Node) -> tuple[str, ...]:
    x, dims, correction, keep = _variance_arguments(b, node)
    first = variance_of(b, x, dims, correction, keep=keep)
    if "std" in node.op:
        first = b.pointwise("sqrt", first, dtype=b.values[first].dtype)
    dtype = b.out(node).dtype
    return b.cast(first, dtype, b.fresh(node.name)), b.cast(mean_of(b, x, dims, keep=keep), dtype, b.fresh(node.name))


def log_sum_exp(b: Builder, x: str, dims: Sequence[int], *, keep: bool) -> str:
    """max + log Σ exp(x - max), in the accumulation type; -inf where all are."""
    inner = b.internal(b.values[x].dtype)
    top = b.reduce("max", x, dims, dtype=inner, keep=keep)
    total = b.reduce("expsum", x, dims, dtype=inner, keep=keep)
    return b.pointwise("add", b.pointwise("log", total, dtype=inner), top, dtype=inner)


def logsumexp(b: Builder, node: Node) -> str:
    x = b.arg(node, 0)
    return b.finish(node, log_sum_exp(b, x, dims_of(b, x, b.arg(node, 1)), keep=bool(b.arg(node, 2, "keepdim", False))))


def softmax(b: Builder, node: Node) -> str:
    """exp(x - max) / Σ exp(x - max)."""
    x, dims = b.arg(node, 0), dims_of(b, b.arg(node, 0), b.arg(node, 1, "dim"))
    inner = b.internal(b.values[x].dtype)
    shifted = b.pointwise("sub", x, b.reduce("max", x, dims, dtype=inner, keep=True), dtype=inner)
    total = b.pointwise("reciprocal", b.reduce("expsum", x, dims, dtype=inner, keep=True), dtype=inner)
    return b.finish(node, b.pointwise("mul", b.pointwise("exp", shifted, dtype=inner), total, dtype=inner))


def log_softmax(b: Builder, node: Node) -> str:
    x, dims = b.arg(node, 0), dims_of(b, b.arg(node, 0), b.arg(node, 1, "dim"))
    inner = b.internal(b.values[x].dtype)
    return b.finish(node, b.pointwise("sub", x, log_sum_exp(b, x, dims, keep=True), dtype=inner))


def vector_norm(b: Builder, node: Node) -> str:
    """linalg_vector_norm(x, ord, dim, keepdim) and norm(x, p, dim, keepdim)."""
    x = b.arg(node, 0)
    order = b.arg(node, 1, "ord", 2)
    order = 2.0 if order is None else order
    dims, keep = dims_of(b, x, b.arg(node, 2, "dim")), bool(b.arg(node, 3, "keepdim", False))
    return b.finish(node, norm_of(b, x, float(order), dims, keep=keep))


def norm_of(b: Builder, x: str, order: float, dims: Sequence[int], *, keep: bool) -> str:
    inner = b.internal(b.values[x].dtype)
    if order == 2:
        total = b.reduce("sum", b.pointwise("square", x, dtype=inner), dims, dtype=inner, keep=keep)
        return b.pointwise("sqrt", total, dtype=inner)
    size = b.pointwise("abs", x, dtype=inner)
    if math.isinf(order):
        return b.reduce("max" if order > 0 else "min", size, dims, dtype=inner, keep=keep)
    if order == 1:
        return b.reduce("sum", size, dims, dtype=inner, keep=keep)
    if order == 0:
        ones = b.pointwise(
            "where", b.pointwise("ne", size, 0.0, dtype="bool", at=ir.compute_type(inner)), 1.0, 0.0, dtype=inner
        )
        return b.reduce("sum", ones, dims, dtype=inner, keep=keep)
    total = b.reduce("sum", b.pointwise("pow", size, order, dtype=inner), dims, dtype=inner, keep=keep)
    return b.pointwise("pow", total, 1.0 / order, dtype=inner)


def embedding_bag(b: Builder, node: Node) -> tuple[str | None, ...]:
    """Sum, mean or maximum over bags of equally many of a table's rows, as a matrix of indices makes them."""
    table, indices = b.arg(node, 0), b.arg(node, 1)
    kind = ("sum", "mean", "max")[int(b.arg(node, 4, "mode", 0))]
    factors, padding = b.arg(node, 6, "per_sample_weights"), b.arg(node, 8, "padding_idx", -1)
    (count,), meta = b.values[indices].shape, b.out(node)
    bags = meta.shape[0]
    size = count // bags
    if padding >= 0 or count % bags or b.constant(node, 2) != tuple(range(0, count, size)):
        raise CantLower("has bags whose sizes are inputs")
    rows = ir.Value("", (bags, size, meta.shape[1]), b.values[table].dtype)
    body = take_along(b, b.fresh("rows"), table, 0, b.reshape(indices, rows.shape[:2]), rows)
    inner = rows.dtype if kind == "max" else b.internal(rows.dtype)
    if factors is not None:
        body = b.pointwise("mul", body, b.reshape(factors, (bags, size, 1)), dtype=inner)
    result = mean_of(b, body, [1], keep=False) if kind == "mean" else b.reduce(kind, body, [1], dtype=inner)
    return (b.cast(result, meta.dtype), None, None, None)


TABLE: dict[str, Lowering] = {
    "sum": sum_, "mean": mean, "amax": _extreme("max"), "amin": _extreme("min"), "max": _max_min("max"),
    "min": _max_min("min"), "prod": prod, "any": _any_all("any"), "all": _any_all("all"), "var": var, "std": var,
    "var_mean": var_mean, "std_mean": var_mean, "logsumexp": logsumexp, "softmax": softmax, "_softmax": softmax,
    "log_softmax": log_softmax, "_log_softmax": log_softmax, "linalg_vector_norm": vector_norm, "norm": vector_norm,
    "argmax": _arg_extreme("max"), "argmin": _arg_extreme("min"), "aminmax": aminmax, "dist": dist,
    "count_nonzero": count_nonzero, "embedding_bag": embedding_bag, "_embedding_bag": embedding_bag,
    "_embedding_bag_forward_only": embedding_bag,
}  # fmt: skip
