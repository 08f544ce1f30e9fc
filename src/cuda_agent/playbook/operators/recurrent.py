"""Cells of recurrent layers as they run on a GPU: what follows their two products, in one kernel."""

from __future__ import annotations

from cuda_agent.core.graph import Node
from cuda_agent.playbook import ir
from cuda_agent.playbook.lower import Builder, Lowering


def _gates(b: Builder, name: str, count: int) -> list[str]:
    """[…, count · hidden] as its parts along the last dimension."""
    source = b.values[name]
    hidden, last = source.shape[-1] // count, len(source.shape) - 1
    shape = (*source.shape[:-1], hidden)

    def part(index: int) -> str:
        axes = tuple(ir.Axis(d, 1, index * hidden if d == last else 0) for d in range(len(shape)))
        return b.add(ir.Strided(b.fresh("gate"), shape, source.dtype, name, axes))

    return [part(index) for index in range(count)]


def _biased(b: Builder, node: Node, place: int, bias: int, count: int, inner: str) -> list[str]:
    """The gates of one product with their biases, where there are such."""
    gates, given = _gates(b, b.arg(node, place), count), b.arg(node, bias)
    if given is None:
        return gates
    return [
        b.pointwise("add", gate, part, dtype=inner) for gate, part in zip(gates, _gates(b, given, count), strict=True)
    ]


def lstm_cell(b: Builder, node: Node) -> tuple[str | None, ...]:
    """_thnn_fused_lstm_cell(input gates, hidden gates, c, input bias, hidden bias) -> h, c; i, f, g, o by rows of the
    weights: c' = σ(f)·c + σ(i)·tanh(g), h' = σ(o)·tanh(c'). Its third result is for gradients."""
    dtype = b.out(node).dtype
    inner = b.internal(dtype)
    pairs = zip(_biased(b, node, 0, 3, 4, inner), _biased(b, node, 1, 4, 4, inner), strict=True)
    i, f, g, o = (b.pointwise("add", x, h, dtype=inner) for x, h in pairs)
    kept = b.pointwise("mul", b.pointwise("sigmoid", f, dtype=inner), b.arg(node, 2), dtype=inner)
    added = b.pointwise("mul", b.pointwise("sigmoid", i, dtype=inner), b.pointwise("tanh", g, dtype=inner), dtype=inner)
    cell = b.pointwise("add", kept, added, dtype=dtype, name=b.fresh(node.name))
    hidden = b.pointwise(
        "mul",
        b.pointwise("sigmoid", o, dtype=inner),
        b.pointwise("tanh", cell, dtype=inner),
        dtype=dtype,
        name=b.fresh(node.name),
    )
    return hidden, cell, None


def gru_cell(b: Builder, node: Node) -> tuple[str | None, ...]:
    """_thnn_fused_gru_cell(input gates, hidden gates, h, input bias, hidden bias) -> h; r, z, n by rows of the weights:
    n = tanh(n_x + σ(r)·n_h), h' = n + σ(z)·(h − n). Its second result is for gradients."""
    dtype = b.out(node).dtype
    inner = b.internal(dtype)
    x, h = _biased(b, node, 0, 3, 3, inner), _biased(b, node, 1, 4, 3, inner)
    reset, update = (
        b.pointwise("sigmoid", b.pointwise("add", x[at], h[at], dtype=inner), dtype=inner) for at in (0, 1)
    )
    new = b.pointwise(
        "tanh", b.pointwise("add", x[2], b.pointwise("mul", reset, h[2], dtype=inner), dtype=inner), dtype=inner
    )
    change = b.pointwise("mul", update, b.pointwise("sub", b.arg(node, 2), new, dtype=inner), dtype=inner)
    return b.pointwise("add", new, change, dtype=dtype, name=b.fresh(node.name)), None


TABLE: dict[str, Lowering] = {"_thnn_fused_lstm_cell": lstm_cell, "_thnn_fused_gru_cell": gru_cell}
