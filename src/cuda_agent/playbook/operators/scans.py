"""Running results along a dimension."""

from __future__ import annotations

from cuda_agent.core.graph import Node
from cuda_agent.playbook import ir
from cuda_agent.playbook.lower import Builder, CantLower, Lowering
from cuda_agent.playbook.operators.views import take_along


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


def masked_scatter(b: Builder, node: Node) -> str:
    """x with the numbers of another tensor, one after the other, where the mask is true. How many came before: of the
    row and of the rows before it, since one long scan has one block."""
    x, source, shape = b.arg(node, 0), b.arg(node, 2), b.out(node).shape
    count, columns = ir.numel(b.values[source].shape), shape[-1] if shape else 1
    if not 0 < ir.numel(shape) < 1 << 31 or not 0 < count < 1 << 31:
        raise CantLower("has too many elements, or none")
    mask = b.expand(b.arg(node, 1), shape)
    chosen = b.reshape(b.cast(mask, "int32"), (ir.numel(shape) // columns, columns))
    rows = b.reduce("sum", chosen, [1], dtype="int32")
    before = b.pointwise("sub", scan_of(b, "sum", rows, 0), rows, dtype="int32")
    place = b.pointwise(
        "add", scan_of(b, "sum", chosen, 1), b.reshape(before, (*b.values[before].shape, 1)), dtype="int32"
    )
    place = b.pointwise("maximum", b.pointwise("sub", place, 1, dtype="int32"), 0, dtype="int32")
    place = b.pointwise("minimum", place, count - 1, dtype="int32")
    wanted = ir.Value("", b.values[place].shape, b.values[source].dtype)
    taken = take_along(b, b.fresh("taken"), b.reshape(source, (count,)), 0, place, wanted)
    return b.finish(node, b.pointwise("where", mask, b.reshape(taken, shape), x, dtype=b.out(node).dtype))


TABLE: dict[str, Lowering] = {
    "cumsum": _scan("sum"), "cumprod": _scan("prod"), "logcumsumexp": _scan("logsum"), "cummax": _extreme("max"),
    "cummin": _extreme("min"), "masked_scatter": masked_scatter,
}  # fmt: skip
