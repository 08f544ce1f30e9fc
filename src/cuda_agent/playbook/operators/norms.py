"""Normalisations, in eval mode, as reductions with element-wise operators around them."""

from __future__ import annotations

from collections.abc import Sequence

from cuda_agent.core.graph import Node
from cuda_agent.playbook import ir
from cuda_agent.playbook.lower import Builder, CantLower, Lowering
from cuda_agent.playbook.operators.reductions import mean_of, variance_of


def _affine(b: Builder, x: str, weight: str | None, bias: str | None, dtype: str) -> str:
    if weight is not None:
        x = b.pointwise("mul", x, weight, dtype=dtype)
    return b.pointwise("add", x, bias, dtype=dtype) if bias is not None else x


def normalised(b: Builder, x: str, dims: Sequence[int], eps: float) -> str:
    """(x - mean) · rsqrt(variance + eps) over dims, in the accumulation type."""
    inner = b.internal(b.values[x].dtype)
    centred = b.pointwise("sub", x, mean_of(b, x, dims, keep=True), dtype=inner)
    spread = b.pointwise("add", variance_of(b, x, dims, 0.0, keep=True), eps, dtype=inner)
    return b.pointwise("mul", centred, b.pointwise("rsqrt", spread, dtype=inner), dtype=inner)


def _per_channel(b: Builder, vector: str | None, rank: int) -> str | None:
    if vector is None:
        return None
    return b.reshape(vector, (*b.values[vector].shape, *([1] * (rank - 2))))


def layer_norm(b: Builder, node: Node) -> str | tuple[str | None, ...]:
    x, shape, weight, bias, eps = (b.arg(node, i) for i in range(5))
    eps = 1e-5 if eps is None else float(eps)
    rank = len(b.values[x].shape)
    inner = b.internal(b.values[x].dtype)
    result = _affine(b, normalised(b, x, range(rank - len(shape), rank), eps), weight, bias, inner)
    if "native" in node.op:
        return (b.cast(result, b.out(node).dtype, b.fresh(node.name)), None, None)
    return b.finish(node, result)


def rms_norm(b: Builder, node: Node) -> str:
    x, shape, weight, eps = (b.arg(node, i) for i in range(4))
    source = b.values[x]
    if eps is None:
        eps = {"float64": 2.220446049250313e-16, "float32": 1.1920928955078125e-07}.get(b.internal(source.dtype), 0.0)
    inner = b.internal(source.dtype)
    rank = len(source.shape)
    power = mean_of(b, b.pointwise("square", x, dtype=inner), range(rank - len(shape), rank), keep=True)
    scale = b.pointwise("rsqrt", b.pointwise("add", power, float(eps), dtype=inner), dtype=inner)
    return b.finish(node, _affine(b, b.pointwise("mul", x, scale, dtype=inner), weight, None, inner))


def group_norm(b: Builder, node: Node) -> str | tuple[str | None, ...]:
    x = b.arg(node, 0)
    native = "native" in node.op
    groups = int(b.arg(node, 6 if native else 1))
    weight, bias = (b.arg(node, i) for i in ((1, 2) if native else (2, 3)))
    eps = float(b.arg(node, 7 if native else 4, "eps", 1e-5))
    shape = b.values[x].shape
    rows = b.reshape(x, (shape[0], groups, ir.numel(shape[1:]) // groups))
    inner = b.internal(b.values[x].dtype)
    back = b.reshape(normalised(b, rows, (2,), eps), shape)
    result = _affine(b, back, _per_channel(b, weight, len(shape)), _per_channel(b, bias, len(shape)), inner)
    if native:
        return (b.cast(result, b.out(node).dtype, b.fresh(node.name)), None, None)
    return b.finish(node, result)


def instance_norm(b: Builder, node: Node) -> str:
    x, weight, bias, mean, var = (b.arg(node, i) for i in range(5))
    eps = float(b.arg(node, 7, "eps", 1e-5))
    rank = len(b.values[x].shape)
    inner = b.internal(b.values[x].dtype)
    if b.arg(node, 5, "use_input_stats", True):
        result = normalised(b, x, range(2, rank), eps)
    else:
        result = _with_statistics(b, x, mean, var, eps)
    return b.finish(node, _affine(b, result, _per_channel(b, weight, rank), _per_channel(b, bias, rank), inner))


def _with_statistics(b: Builder, x: str, mean: str, var: str, eps: float) -> str:
    inner, rank = b.internal(b.values[x].dtype), len(b.values[x].shape)
    shift, spread = _per_channel(b, mean, rank), _per_channel(b, var, rank)
    assert shift is not None and spread is not None
    scale = b.pointwise("rsqrt", b.pointwise("add", spread, eps, dtype=inner), dtype=inner)
    return b.pointwise("mul", b.pointwise("sub", x, shift, dtype=inner), scale, dtype=inner)


def batch_norm(b: Builder, node: Node) -> str | tuple[str | None, ...]:
    """Running statistics in eval mode; the batch's where there are none or in training mode."""
    x, weight, bias, mean, var = (b.arg(node, i) for i in range(5))
    native = "no_training" in node.op
    training = False if native else bool(b.arg(node, 5, "training", False))
    eps = float(b.arg(node, 6 if native else 7, "eps", 1e-5))
    rank = len(b.values[x].shape)
    inner = b.internal(b.values[x].dtype)
    if training or mean is None:
        result = normalised(b, x, (0, *range(2, rank)), eps)
    else:
        result = _with_statistics(b, x, mean, var, eps)
    result = _affine(b, result, _per_channel(b, weight, rank), _per_channel(b, bias, rank), inner)
    if native:
        return (b.cast(result, b.out(node).dtype, b.fresh(node.name)), None, None)
    return b.finish(node, result)


def batch_norm_of_batch(b: Builder, node: Node) -> tuple[str | None, ...]:
    """_native_batch_norm_legit.no_stats: the batch's own statistics."""
    x, weight, bias = (b.arg(node, i) for i in range(3))
    if not node.op.endswith("no_stats"):
        raise CantLower("updates running statistics")
    rank = len(b.values[x].shape)
    inner = b.internal(b.values[x].dtype)
    result = normalised(b, x, (0, *range(2, rank)), float(b.arg(node, 5, "eps", 1e-5)))
    result = _affine(b, result, _per_channel(b, weight, rank), _per_channel(b, bias, rank), inner)
    return (b.cast(result, b.out(node).dtype, b.fresh(node.name)), None, None)


TABLE: dict[str, Lowering] = {
    "layer_norm": layer_norm, "native_layer_norm": layer_norm, "rms_norm": rms_norm, "group_norm": group_norm,
    "native_group_norm": group_norm, "instance_norm": instance_norm, "batch_norm": batch_norm,
    "_native_batch_norm_legit_no_training": batch_norm, "_native_batch_norm_legit": batch_norm_of_batch,
}  # fmt: skip
