"""Lowers losses and similarities to element-wise operators and reductions."""

from cuda_agent.core.graph import Node
from cuda_agent.playbook import ir
from cuda_agent.playbook.lower import Builder, CantLower
from cuda_agent.playbook.operators.reductions import exponential_sums, mean_of

_REDUCTIONS = {0: "none", 1: "mean", 2: "sum"}


def reduced(b: Builder, node: Node, x: str, reduction: int) -> str:
    """Adds the loss's result: each element, the mean or the sum."""
    how = _REDUCTIONS[reduction]
    dims = tuple(range(b.rank(x)))
    if how == "mean":
        x = mean_of(b, x, dims, keep=False)
    elif how == "sum":
        x = b.reduce("sum", x, dims, dtype=b.inner(x))
    return b.finish(node, x)


def _picked(b: Builder, scores: str, target: str, ignore: int) -> tuple[str, str]:
    """Adds scores[n, target], and whether the target isn't to be ignored. The classes' dimension is 1, or 0 for one
    row."""
    source, index = b.values[scores], b.values[target]
    dim = 0 if len(source.shape) == 1 else 1
    keep = b.test("ne", target, ignore, at="i64")
    safe = b.pointwise("where", keep, target, 0, dtype="int64")
    axes = tuple(-1 if d == dim else d - (d > dim) for d in range(len(source.shape)))
    every = tuple(range(len(index.shape)))
    return b.add(ir.Take(b.fresh("picked"), index.shape, source.dtype, scores, dim, safe, axes, every)), keep


def _mean_of_kept(b: Builder, node: Node, score: str, keep: str, how: int) -> str:
    """Adds -score as the result, reduced over the targets that aren't ignored."""
    inner = b.inner(score)
    op = b.typed(inner)
    losses = op("where", keep, op("neg", score), 0.0)
    if _REDUCTIONS[how] == "none":
        return b.finish(node, losses)
    dims = tuple(range(b.rank(losses)))
    total = b.reduce("sum", losses, dims, dtype=inner)
    if _REDUCTIONS[how] == "mean":
        total = op("div", total, b.reduce("sum", b.cast(keep, inner), dims, dtype=inner))
    return b.finish(node, total)


def _arguments(b: Builder, node: Node) -> tuple[str, str, int, int]:
    """Returns scores, target, reduction and ignored index of a loss over classes."""
    x, target, weight = b.args(node, 0, 1, 2)
    if weight is not None:
        raise CantLower("weighs classes")
    return x, target, int(b.arg(node, 3, "reduction", 1)), int(b.arg(node, 4, "ignore_index", -100))


def cross_entropy(b: Builder, node: Node) -> str:
    """Lowers cross entropy with class indices or probabilities as the target, and label smoothing."""
    x, target, how, ignore = _arguments(b, node)
    smoothing = float(b.arg(node, 5, "label_smoothing", 0.0))
    dim = 0 if b.rank(x) == 1 else 1
    op = b.typed(b.inner(x))
    if b.values[target].dtype in ir.FLOAT_DTYPES:
        return reduced(b, node, _expected_loss(b, x, target, dim, smoothing), how)
    top, rest = exponential_sums(b, x, (dim,), keep=False)
    picked, keep = _picked(b, x, target, ignore)
    score = op("sub", op("sub", picked, top), rest)
    if smoothing:
        # The distance from any value of the row is small, where the row's mean may be large.
        first = b.slice(x, dim, 0, 1, name=b.fresh("first"))
        first = op("where", b.test("isfinite", first, at=ir.compute_type(b.inner(x))), first, 0.0)
        near = mean_of(b, op("sub", x, first), (dim,), keep=False)
        first = b.select(first, dim, 0, name=b.fresh("first"))
        smooth = op("add", near, op("sub", op("sub", first, top), rest))
        score = op("add", op("mul", score, 1.0 - smoothing), op("mul", smooth, smoothing))
    return _mean_of_kept(b, node, score, keep, how)


def _expected_loss(b: Builder, x: str, target: str, dim: int, smoothing: float) -> str:
    """Adds -Σ target · log_softmax(x) over the classes."""
    shape, inner = b.shape_of(x), b.inner(x)
    op = b.typed(inner)
    top, rest = (b.expand(value, shape) for value in exponential_sums(b, x, (dim,), keep=True))
    if smoothing:
        target = op("add", op("mul", target, 1.0 - smoothing), smoothing / shape[dim])
    return b.reduce("sum", op("mul", target, op("sub", rest, op("sub", x, top))), (dim,), dtype=inner)


def nll_loss(b: Builder, node: Node) -> str | tuple[str | None, ...]:
    if "forward" in node.op:
        raise CantLower("returns a total weight")
    x, target, how, ignore = _arguments(b, node)
    return _mean_of_kept(b, node, *_picked(b, x, target, ignore), how)


def cosine_similarity(b: Builder, node: Node) -> str:
    """Lowers cosine similarity: x·y / (max(‖x‖, eps) · max(‖y‖, eps))."""
    x, y = b.args(node, 0, 1)
    dtype, shape = b.internal(b.out(node).dtype), b.shape(x, y)
    inner = b.typed(dtype)
    dim, eps = (int(b.arg(node, 2, "dim", 1)) % len(shape),), float(b.arg(node, 3, "eps", 1e-8))
    dot = b.reduce("sum", inner("mul", x, y), dim, dtype=dtype)
    sizes = []
    for side in (x, y):
        total = b.reduce("sum", inner("square", b.expand(side, shape)), dim, dtype=dtype)
        sizes.append(inner("maximum", inner("sqrt", total), eps))
    return b.finish(node, inner("div", dot, inner("mul", *sizes)))
