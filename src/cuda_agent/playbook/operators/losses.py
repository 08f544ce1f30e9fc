"""Losses and similarities, as element-wise operators and reductions."""

from __future__ import annotations

from cuda_agent.core.graph import Node
from cuda_agent.playbook import ir
from cuda_agent.playbook.lower import Builder, CantLower, Lowering
from cuda_agent.playbook.operators.reductions import log_sum_exp, mean_of

_REDUCTIONS = {0: "none", 1: "mean", 2: "sum"}


def _reduced(b: Builder, node: Node, x: str, how: int) -> str:
    dims = tuple(range(len(b.values[x].shape)))
    if _REDUCTIONS[how] == "mean":
        x = mean_of(b, x, dims, keep=False)
    elif _REDUCTIONS[how] == "sum":
        x = b.reduce("sum", x, dims, dtype=b.internal(b.values[x].dtype))
    return b.finish(node, x)


def _nll(b: Builder, node: Node, scores: str, target: str, weight: str | None, how: int, ignore: int) -> str:
    """-scores[n, target] over the class dimension 1 (0 for one row); `scores` may be any value of [N, C, …]."""
    if weight is not None:
        raise CantLower("weighs classes")
    losses, keep = _picked(b, scores, target, ignore)
    return _mean_of_kept(b, node, losses, keep, how)


def _picked(b: Builder, scores: str, target: str, ignore: int) -> tuple[str, str]:
    source, index = b.values[scores], b.values[target]
    dim = 0 if len(source.shape) == 1 else 1
    keep = b.pointwise("ne", target, ignore, dtype="bool", at="i64")
    safe = b.pointwise("where", keep, target, 0, dtype="int64")
    rank = len(index.shape)
    axes = tuple(-1 if d == dim else d - (d > dim) for d in range(len(source.shape)))
    picked = b.add(ir.Take(b.fresh("picked"), index.shape, source.dtype, scores, dim, safe, axes, tuple(range(rank))))
    return picked, keep


def _mean_of_kept(b: Builder, node: Node, negated: str, keep: str, how: int) -> str:
    inner = b.internal(b.values[negated].dtype)
    losses = b.pointwise("where", keep, b.pointwise("neg", negated, dtype=inner), 0.0, dtype=inner)
    if _REDUCTIONS[how] == "none":
        return b.finish(node, losses)
    dims = tuple(range(len(b.values[losses].shape)))
    total = b.reduce("sum", losses, dims, dtype=inner)
    if _REDUCTIONS[how] == "mean":
        count = b.reduce("sum", b.cast(keep, inner), dims, dtype=inner)
        total = b.pointwise("div", total, count, dtype=inner)
    return b.finish(node, total)


def cross_entropy(b: Builder, node: Node) -> str:
    """Class indices or probabilities as the target, optional label smoothing."""
    x, target, weight = (b.arg(node, i) for i in range(3))
    how, ignore = int(b.arg(node, 3, "reduction", 1)), int(b.arg(node, 4, "ignore_index", -100))
    smoothing = float(b.arg(node, 5, "label_smoothing", 0.0))
    source = b.values[x]
    if weight is not None:
        raise CantLower("weighs classes")
    dim = 0 if len(source.shape) == 1 else 1
    inner = b.internal(source.dtype)
    if b.values[target].dtype in ir.FLOAT_DTYPES:
        return _reduced(b, node, _expected_loss(b, x, target, dim, smoothing), how)
    lse = log_sum_exp(b, x, (dim,), keep=False)
    picked, keep = _picked(b, x, target, ignore)
    score = b.pointwise("sub", picked, lse, dtype=inner)
    if smoothing:
        smooth = b.pointwise("sub", mean_of(b, x, (dim,), keep=False), lse, dtype=inner)
        score = b.pointwise("add", b.pointwise("mul", score, 1.0 - smoothing, dtype=inner),
                            b.pointwise("mul", smooth, smoothing, dtype=inner), dtype=inner)  # fmt: skip
    return _mean_of_kept(b, node, score, keep, how)


def _expected_loss(b: Builder, x: str, target: str, dim: int, smoothing: float) -> str:
    """-Σ target · log_softmax(x) over the classes."""
    source = b.values[x]
    inner = b.internal(source.dtype)
    lse = b.expand(log_sum_exp(b, x, (dim,), keep=True), source.shape)
    if smoothing:
        target = b.pointwise("mul", target, 1.0 - smoothing, dtype=inner)
        target = b.pointwise("add", target, smoothing / source.shape[dim], dtype=inner)
    negated = b.pointwise("mul", target, b.pointwise("sub", lse, x, dtype=inner), dtype=inner)
    return b.reduce("sum", negated, (dim,), dtype=inner)


def nll_loss(b: Builder, node: Node) -> str | tuple[str | None, ...]:
    x, target, weight = (b.arg(node, i) for i in range(3))
    if "forward" in node.op:
        raise CantLower("returns a total weight")
    return _nll(
        b, node, x, target, weight, int(b.arg(node, 3, "reduction", 1)), int(b.arg(node, 4, "ignore_index", -100))
    )


def mse_loss(b: Builder, node: Node) -> str:
    inner = b.internal(b.out(node).dtype)
    gap = b.pointwise("sub", b.arg(node, 0), b.arg(node, 1), dtype=inner)
    return _reduced(b, node, b.pointwise("square", gap, dtype=inner), int(b.arg(node, 2, "reduction", 1)))


def l1_loss(b: Builder, node: Node) -> str:
    inner = b.internal(b.out(node).dtype)
    gap = b.pointwise("sub", b.arg(node, 0), b.arg(node, 1), dtype=inner)
    return _reduced(b, node, b.pointwise("abs", gap, dtype=inner), int(b.arg(node, 2, "reduction", 1)))


def smooth_l1(b: Builder, node: Node) -> str:
    """smooth_l1(beta) and huber(delta): d²/2β below β, d - β/2 above; huber is β times it."""
    inner = b.internal(b.out(node).dtype)
    huber = "huber" in node.op
    beta = float(b.arg(node, 3, "delta" if huber else "beta", 1.0))
    if beta == 0:
        return l1_loss(b, node)
    gap = b.pointwise("abs", b.pointwise("sub", b.arg(node, 0), b.arg(node, 1), dtype=inner), dtype=inner)
    near = b.pointwise("mul", b.pointwise("square", gap, dtype=inner), 0.5 if huber else 0.5 / beta, dtype=inner)
    far = b.pointwise("sub", gap, 0.5 * beta, dtype=inner)
    if huber:
        far = b.pointwise("mul", far, beta, dtype=inner)
    close = b.pointwise("lt", gap, beta, dtype="bool", at=ir.compute_type(inner))
    return _reduced(b, node, b.pointwise("where", close, near, far, dtype=inner), int(b.arg(node, 2, "reduction", 1)))


def kl_div(b: Builder, node: Node) -> str:
    x, target = b.arg(node, 0), b.arg(node, 1)
    inner = b.internal(b.out(node).dtype)
    if b.arg(node, 3, "log_target", False):
        part = b.pointwise(
            "mul", b.pointwise("exp", target, dtype=inner), b.pointwise("sub", target, x, dtype=inner), dtype=inner
        )
    else:
        gap = b.pointwise("sub", b.pointwise("log", target, dtype=inner), x, dtype=inner)
        positive = b.pointwise("gt", target, 0.0, dtype="bool", at=ir.compute_type(inner))
        part = b.pointwise("where", positive, b.pointwise("mul", target, gap, dtype=inner), 0.0, dtype=inner)
    return _reduced(b, node, part, int(b.arg(node, 2, "reduction", 1)))


def bce_with_logits(b: Builder, node: Node) -> str:
    """(1 - y)·x + softplus(-x)."""
    x, target, weight, positive = (b.arg(node, i) for i in range(4))
    if positive is not None:
        raise CantLower("weighs the positive class")
    inner = b.internal(b.out(node).dtype)
    rest = b.pointwise("mul", b.pointwise("sub", 1.0, target, dtype=inner), x, dtype=inner)
    loss = b.pointwise("sub", rest, b.pointwise("logsigmoid", x, dtype=inner), dtype=inner)
    if weight is not None:
        loss = b.pointwise("mul", loss, weight, dtype=inner)
    return _reduced(b, node, loss, int(b.arg(node, 4, "reduction", 1)))


def bce(b: Builder, node: Node) -> str:
    """-(y·max(log x, -100) + (1 - y)·max(log(1 - x), -100))."""
    x, target, weight = (b.arg(node, i) for i in range(3))
    inner = b.internal(b.out(node).dtype)
    yes = b.pointwise("maximum", b.pointwise("log", x, dtype=inner), -100.0, dtype=inner)
    no = b.pointwise("log1p", b.pointwise("neg", x, dtype=inner), dtype=inner)
    no = b.pointwise("maximum", no, -100.0, dtype=inner)
    first = b.pointwise("mul", b.pointwise("sub", target, 1.0, dtype=inner), no, dtype=inner)
    loss = b.pointwise("sub", first, b.pointwise("mul", target, yes, dtype=inner), dtype=inner)
    if weight is not None:
        loss = b.pointwise("mul", loss, weight, dtype=inner)
    return _reduced(b, node, loss, int(b.arg(node, 3, "reduction", 1)))


def cosine_similarity(b: Builder, node: Node) -> str:
    """x·y / (max(‖x‖, eps) · max(‖y‖, eps))."""
    x, y = b.arg(node, 0), b.arg(node, 1)
    inner = b.internal(b.out(node).dtype)
    shape = b.shape(x, y)
    dim = (int(b.arg(node, 2, "dim", 1)) % len(shape),)
    eps = float(b.arg(node, 3, "eps", 1e-8))
    dot = b.reduce("sum", b.pointwise("mul", x, y, dtype=inner), dim, dtype=inner)
    sizes = []
    for side in (x, y):
        side = b.expand(side, shape)
        total = b.reduce("sum", b.pointwise("square", side, dtype=inner), dim, dtype=inner)
        sizes.append(b.pointwise("maximum", b.pointwise("sqrt", total, dtype=inner), eps, dtype=inner))
    return b.finish(node, b.pointwise("div", dot, b.pointwise("mul", sizes[0], sizes[1], dtype=inner), dtype=inner))


TABLE: dict[str, Lowering] = {
    "cross_entropy_loss": cross_entropy, "nll_loss": nll_loss, "nll_loss_nd": nll_loss, "nll_loss2d": nll_loss,
    "mse_loss": mse_loss, "l1_loss": l1_loss, "smooth_l1_loss": smooth_l1, "huber_loss": smooth_l1, "kl_div": kl_div,
    "binary_cross_entropy_with_logits": bce_with_logits, "binary_cross_entropy": bce,
    "cosine_similarity": cosine_similarity,
}  # fmt: skip
