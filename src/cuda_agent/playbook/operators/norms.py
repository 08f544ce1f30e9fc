"""Lowers normalisations to reductions with element-wise operators around them."""

from __future__ import annotations

from collections.abc import Sequence

from cuda_agent.core.graph import Node
from cuda_agent.playbook import ir
from cuda_agent.playbook.lower import Builder, CantLower
from cuda_agent.playbook.operators.reductions import mean_of, variance_of


def normalised(b: Builder, x: str, dims: Sequence[int], eps: float) -> str:
    """Adds (x - mean) · rsqrt(variance + eps) over the dimensions, in the accumulation type."""
    inner = b.typed(b.inner(x))
    centred = inner("sub", x, mean_of(b, x, dims, keep=True))
    spread = inner("add", variance_of(b, x, dims, 0.0, keep=True), eps)
    return inner("mul", centred, inner("rsqrt", spread))


def _per_channel(b: Builder, vector: str | None, rank: int) -> str | None:
    """Adds a view of a vector over dimension 1 of a tensor of this rank."""
    return None if vector is None else b.reshape(vector, (*b.shape_of(vector), *([1] * (rank - 2))))


def _finished(
    b: Builder, node: Node, x: str, weight: str | None, bias: str | None, inner: str, *, native: bool = False
) -> str | tuple[str | None, ...]:
    """Adds x · weight + bias as the node's result, or as the first of a native operator's three results. The others,
    statistics, aren't available."""
    x = b.pointwise("mul", x, weight, dtype=inner) if weight is not None else x
    x = b.pointwise("add", x, bias, dtype=inner) if bias is not None else x
    return (b.cast(x, b.out(node).dtype, b.fresh(node.name)), None, None) if native else b.finish(node, x)


def layer_norm(b: Builder, node: Node) -> str | tuple[str | None, ...]:
    x, shape, weight, bias, eps = b.args(node, 0, 1, 2, 3, 4)
    result = normalised(b, x, range(b.rank(x) - len(shape), b.rank(x)), 1e-5 if eps is None else float(eps))
    return _finished(b, node, result, weight, bias, b.inner(x), native="native" in node.op)


def rms_norm(b: Builder, node: Node) -> str | tuple[str | None, ...]:
    x, shape, weight, eps = b.args(node, 0, 1, 2, 3)
    if eps is None:
        eps = {"float64": 2.220446049250313e-16, "float32": 1.1920928955078125e-07}.get(b.inner(x), 0.0)
    inner = b.typed(b.inner(x))
    power = mean_of(b, inner("square", x), range(b.rank(x) - len(shape), b.rank(x)), keep=True)
    scale = inner("rsqrt", inner("add", power, float(eps)))
    return _finished(b, node, inner("mul", x, scale), weight, None, b.inner(x))


def group_norm(b: Builder, node: Node) -> str | tuple[str | None, ...]:
    x, native = b.arg(node, 0), "native" in node.op
    groups = int(b.arg(node, 6 if native else 1))
    weight, bias = b.args(node, *((1, 2) if native else (2, 3)))
    eps = float(b.arg(node, 7 if native else 4, "eps", 1e-5))
    shape = b.shape_of(x)
    rows = b.reshape(x, (shape[0], groups, ir.numel(shape[1:]) // groups))
    return _with_channel_weights(b, node, x, b.reshape(normalised(b, rows, (2,), eps), shape), weight, bias, native)


def _with_channel_weights(
    b: Builder, node: Node, x: str, result: str, weight: str | None, bias: str | None, native: bool
) -> str | tuple[str | None, ...]:
    weight, bias = _per_channel(b, weight, b.rank(x)), _per_channel(b, bias, b.rank(x))
    return _finished(b, node, result, weight, bias, b.inner(x), native=native)


def instance_norm(b: Builder, node: Node) -> str | tuple[str | None, ...]:
    x, weight, bias, mean, var = b.args(node, 0, 1, 2, 3, 4)
    eps = float(b.arg(node, 7, "eps", 1e-5))
    if b.arg(node, 5, "use_input_stats", True):
        result = normalised(b, x, range(2, b.rank(x)), eps)
    else:
        result = _with_statistics(b, x, mean, var, eps)
    return _with_channel_weights(b, node, x, result, weight, bias, False)


def _with_statistics(b: Builder, x: str, mean: str, var: str, eps: float) -> str:
    """Adds (x - mean) · rsqrt(var + eps) with given statistics of each channel."""
    inner = b.typed(b.inner(x))
    shift, spread = _per_channel(b, mean, b.rank(x)), _per_channel(b, var, b.rank(x))
    scale = inner("rsqrt", inner("add", spread, eps))
    return inner("mul", inner("sub", x, shift), scale)


def batch_norm(b: Builder, node: Node) -> str | tuple[str | None, ...]:
    """Lowers batch norm with running statistics, or with the batch's own where there are none or in training mode."""
    x, weight, bias, mean, var = b.args(node, 0, 1, 2, 3, 4)
    native = "no_training" in node.op
    training = False if native else bool(b.arg(node, 5, "training", False))
    eps = float(b.arg(node, 6 if native else 7, "eps", 1e-5))
    if training or mean is None:
        result = normalised(b, x, (0, *range(2, b.rank(x))), eps)
    else:
        result = _with_statistics(b, x, mean, var, eps)
    return _with_channel_weights(b, node, x, result, weight, bias, native)


def batch_norm_of_batch(b: Builder, node: Node) -> str | tuple[str | None, ...]:
    """Lowers _native_batch_norm_legit.no_stats, which uses the batch's own statistics."""
    x, weight, bias = b.args(node, 0, 1, 2)
    if not node.op.endswith("no_stats"):
        raise CantLower("updates running statistics")
    result = normalised(b, x, (0, *range(2, b.rank(x))), float(b.arg(node, 5, "eps", 1e-5)))
    return _with_channel_weights(b, node, x, result, weight, bias, True)
