"""Running results along a dimension."""

from __future__ import annotations

from cuda_agent.core.graph import Node
from cuda_agent.playbook import ir
from cuda_agent.playbook.lower import Builder, CantLower, Lowering


def _scan(kind: str) -> Lowering:
    def lower(b: Builder, node: Node) -> str:
        meta = b.out(node)
        return b.finish(node, scan_of(b, kind, b.cast(b.arg(node, 0), b.internal(meta.dtype)), int(b.arg(node, 1))))

    return lower


def scan_of(b: Builder, kind: str, x: str, dim: int) -> str:
    """The running sum, product, … of x along a dimension, in x's own type."""
    source = b.values[x]
    rank = len(source.shape)
    if rank == 0 or source.shape[dim % rank] == 1:
        return x
    if source.dtype == "bool":
        raise CantLower("scans truth values")
    return b.add(ir.Scan(b.fresh(kind), source.shape, source.dtype, kind, x, dim % rank))


def _extreme(kind: str) -> Lowering:
    """cummax and cummin; whoever reads the indices isn't covered."""

    def lower(b: Builder, node: Node) -> tuple[str | None, ...]:
        return scan_of(b, kind, b.arg(node, 0), int(b.arg(node, 1))), None

    return lower


TABLE: dict[str, Lowering] = {
    "cumsum": _scan("sum"), "cumprod": _scan("prod"), "logcumsumexp": _scan("logsum"), "cummax": _extreme("max"),
    "cummin": _extreme("min"),
}  # fmt: skip
