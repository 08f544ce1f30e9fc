"""Lowers cells of recurrent layers as they run on a GPU: the element-wise operators after their two products."""

from __future__ import annotations

from cuda_agent.core.graph import Node
from cuda_agent.playbook.lower import Builder, Lowering


def _gates(b: Builder, name: str, count: int) -> list[str]:
    """Adds the gates of a value [..., count · hidden]."""
    last = b.rank(name) - 1
    hidden = b.shape_of(name)[last] // count
    return [b.slice(name, last, index * hidden, hidden, name=b.fresh("gate")) for index in range(count)]


def _biased(b: Builder, node: Node, place: int, bias: int, count: int, inner: str) -> list[str]:
    """Adds the gates of one product, with their biases where it has some."""
    gates, given = _gates(b, b.arg(node, place), count), b.arg(node, bias)
    if given is None:
        return gates
    pairs = zip(gates, _gates(b, given, count), strict=True)
    return [b.pointwise("add", gate, part, dtype=inner) for gate, part in pairs]


def lstm_cell(b: Builder, node: Node) -> tuple[str | None, ...]:
    """Lowers _thnn_fused_lstm_cell(input gates, hidden gates, c, input bias, hidden bias) -> h', c'.

    c' = σ(f)·c + σ(i)·tanh(g), h' = σ(o)·tanh(c'), with the gates i, f, g, o in the order of the weights' rows. The
    third result, which gradients need, isn't available.
    """
    dtype = b.out(node).dtype
    inner = b.internal(dtype)
    op = b.typed(inner)
    pairs = zip(_biased(b, node, 0, 3, 4, inner), _biased(b, node, 1, 4, 4, inner), strict=True)
    i, f, g, o = (op("add", x, h) for x, h in pairs)
    kept = op("mul", op("sigmoid", f), b.arg(node, 2))
    added = op("mul", op("sigmoid", i), op("tanh", g))
    cell = b.pointwise("add", kept, added, dtype=dtype, name=b.fresh(node.name))
    factors = op("sigmoid", o), op("tanh", cell)
    return b.pointwise("mul", *factors, dtype=dtype, name=b.fresh(node.name)), cell, None


def gru_cell(b: Builder, node: Node) -> tuple[str | None, ...]:
    """Lowers _thnn_fused_gru_cell(input gates, hidden gates, h, input bias, hidden bias) -> h'.

    n = tanh(n_x + σ(r)·n_h), h' = n + σ(z)·(h − n), with the gates r, z, n in the order of the weights' rows. The
    second result, which gradients need, isn't available.
    """
    dtype = b.out(node).dtype
    inner = b.internal(dtype)
    op = b.typed(inner)
    x, h = _biased(b, node, 0, 3, 3, inner), _biased(b, node, 1, 4, 3, inner)
    reset, update = (op("sigmoid", op("add", x[at], h[at])) for at in (0, 1))
    new = op("tanh", op("add", x[2], op("mul", reset, h[2])))
    change = op("mul", update, op("sub", b.arg(node, 2), new))
    return b.pointwise("add", new, change, dtype=dtype, name=b.fresh(node.name)), None


TABLE: dict[str, Lowering] = {"_thnn_fused_lstm_cell": lstm_cell, "_thnn_fused_gru_cell": gru_cell}
