"""Lowers normalisations to reductions with element-wise operators around them."""

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


def _per_channel(b: Builder, vector: str, rank: int) -> str:
    """Adds a view of a vector over dimension 1 of a tensor of this rank."""
    return b.reshape(vector, (*b.shape_of(vector), *([1] * (rank - 2))))


def _finished(
    b: Builder, node: Node, result: str, weight: str | None, bias: str | None, *, per_channel: bool = True
) -> str | tuple[str | None, ...]:
    """Adds result · weight + bias as the node's result, or as the first of a native operator's three results. The
    others, statistics, aren't available."""
    x = b.arg(node, 0)
    given = [("mul", weight), ("add", bias)]
    factors = [(op, _per_channel(b, v, b.rank(x)) if per_channel else v) for op, v in given if v is not None]
    for op, factor in factors:
        result = b.pointwise(op, result, factor, dtype=b.inner(x))
    if len(node.outputs) > 1:
        return b.cast(result, b.out(node).dtype, b.fresh(node.name)), None, None
    return b.finish(node, result)


def layer_norm(b: Builder, node: Node) -> str | tuple[str | None, ...]:
    x, shape, weight, bias, eps = b.args(node, 0, 1, 2, 3, 4)
    result = normalised(b, x, range(b.rank(x) - len(shape), b.rank(x)), 1e-5 if eps is None else float(eps))
    return _finished(b, node, result, weight, bias, per_channel=False)


def rms_norm(b: Builder, node: Node) -> str | tuple[str | None, ...]:
    x, shape, weight, eps = b.args(node, 0, 1, 2, 3)
    if eps is None:
        eps = {"float64": 2.220446049250313e-16, "float32": 1.1920928955078125e-07}.get(b.inner(x), 0.0)
    inner = b.typed(b.inner(x))
    power = mean_of(b, inner("square", x), range(b.rank(x) - len(shape), b.rank(x)), keep=True)
    scale = inner("rsqrt", inner("add", power, float(eps)))
    return _finished(b, node, inner("mul", x, scale), weight, None, per_channel=False)


def group_norm(b: Builder, node: Node) -> str | tuple[str | None, ...]:
    x, native = b.arg(node, 0), "native" in node.op
    groups = int(b.arg(node, 6 if native else 1))
    weight, bias = b.args(node, *((1, 2) if native else (2, 3)))
    eps = float(b.arg(node, 7 if native else 4, "eps", 1e-5))
    shape = b.shape_of(x)
    rows = b.reshape(x, (shape[0], groups, ir.numel(shape[1:]) // groups))
    return _finished(b, node, b.reshape(normalised(b, rows, (2,), eps), shape), weight, bias)


def instance_norm(b: Builder, node: Node) -> str | tuple[str | None, ...]:
    return _by_channel(b, node, range(2, b.rank(b.arg(node, 0))), not b.arg(node, 5, "use_input_stats", True), 7)


def batch_norm(b: Builder, node: Node) -> str | tuple[str | None, ...]:
    """Lowers batch norm with running statistics, or with the batch's own where there are none or in training mode."""
    native = "no_training" in node.op
    given = b.arg(node, 3) is not None and (native or not b.arg(node, 5, "training", False))
    return _by_channel(b, node, (0, *range(2, b.rank(b.arg(node, 0)))), given, 6 if native else 7)


def batch_norm_of_batch(b: Builder, node: Node) -> str | tuple[str | None, ...]:
    """Lowers _native_batch_norm_legit.no_stats, which uses the batch's own statistics."""
    if not node.op.endswith("no_stats"):
        raise CantLower("updates running statistics")
    return _by_channel(b, node, (0, *range(2, b.rank(b.arg(node, 0)))), False, 5)


def _by_channel(b: Builder, node: Node, dims: Sequence[int], given: bool, eps_at: int) -> str | tuple[str | None, ...]:
    """Lowers a norm of each channel: by its statistics over the dimensions, or by those that are `given`."""
    x, weight, bias = b.args(node, 0, 1, 2)
    eps = float(b.arg(node, eps_at, "eps", 1e-5))
    if not given:
        return _finished(b, node, normalised(b, x, dims, eps), weight, bias)
    inner = b.typed(b.inner(x))
    shift, spread = (_per_channel(b, b.arg(node, at), b.rank(x)) for at in (3, 4))
    scale = inner("rsqrt", inner("add", spread, eps))
    return _finished(b, node, inner("mul", inner("sub", x, shift), scale), weight, bias)
