"""Lowers scans: running results along a dimension."""

from cuda_agent.core.graph import Node
from cuda_agent.playbook import ir
from cuda_agent.playbook.lower import Builder, CantLower


def scan(b: Builder, node: Node, kind: str) -> str:
    x = b.cast(b.arg(node, 0), b.internal(b.out(node).dtype))
    return b.finish(node, scan_of(b, kind, x, int(b.arg(node, 1))))


def scan_of(b: Builder, kind: str, x: str, dim: int) -> str:
    """Adds the scan of x along a dimension, in x's own type."""
    source = b.values[x]
    rank = len(source.shape)
    if rank == 0 or source.shape[dim % rank] == 1:
        return x
    if source.dtype == "bool":
        raise CantLower("scans truth values")
    return b.add(ir.Scan(b.fresh(kind), source.shape, source.dtype, kind, x, dim % rank))


def extreme(b: Builder, node: Node, kind: str) -> tuple[str, None]:
    """Lowers cummax and cummin, without their indices."""
    return scan_of(b, kind, b.arg(node, 0), int(b.arg(node, 1))), None


def masked_scatter(b: Builder, node: Node) -> str:
    """Lowers masked_scatter: x with consecutive elements of another tensor where the mask is true.

    The index of an element is the number of true elements before it. It is the sum of a scan along rows and a scan over
    the rows' totals, since a scan of all elements would run in one block only.
    """
    x, source, shape = b.arg(node, 0), b.arg(node, 2), b.out(node).shape
    count, columns = ir.numel(b.shape_of(source)), shape[-1] if shape else 1
    if not 0 < ir.numel(shape) < 1 << 31 or not 0 < count < 1 << 31:
        raise CantLower("has too many elements, or none")
    op = b.typed("int32")
    mask = b.expand(b.arg(node, 1), shape)
    chosen = b.reshape(b.cast(mask, "int32"), (ir.numel(shape) // columns, columns))
    rows = b.reduce("sum", chosen, [1], dtype="int32")
    before = op("sub", scan_of(b, "sum", rows, 0), rows)
    place = op("add", scan_of(b, "sum", chosen, 1), b.reshape(before, (*b.shape_of(before), 1)))
    place = op("minimum", op("maximum", op("sub", place, 1), 0), count - 1)
    name = b.fresh("taken")
    taken = b.take(b.reshape(source, (count,)), 0, place, name=name)
    chosen = b.pointwise("where", mask, b.reshape(taken, shape), x, dtype=b.out(node).dtype)
    return b.finish(node, chosen)
