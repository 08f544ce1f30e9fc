"""Places in sorted sequences, by bisection: as many steps for every element, so that it is a chain like any other."""

from __future__ import annotations

from cuda_agent.core.graph import Node
from cuda_agent.playbook import ir
from cuda_agent.playbook.lower import Builder, CantLower, Lowering


def searchsorted(b: Builder, node: Node) -> str:
    """searchsorted(sequence, x): rows of x in the rows of the sequence, or all of x in the only one."""
    if node.kwargs.get("sorter") is not None or len(node.args) > 2:
        raise CantLower("searches a sequence through its order")
    right = bool(node.kwargs.get("right", False)) or node.kwargs.get("side") == "right"
    return _searched(b, node, b.arg(node, 0), b.arg(node, 1), right)


def bucketize(b: Builder, node: Node) -> str:
    """bucketize(x, sequence) is searchsorted(sequence, x)."""
    return _searched(b, node, b.arg(node, 1), b.arg(node, 0), bool(node.kwargs.get("right", False)))


def _searched(b: Builder, node: Node, sequence: str, x: str | ir.Scalar, right: bool) -> str:
    """How many of the sequence are less than x (`right`: at most x), as if it were sorted. NaN is behind all."""
    source, shape = b.values[sequence], b.out(node).shape
    lead, rank = len(source.shape) - 1, len(shape)
    if lead < 0 or source.shape[-1] == 0 or source.shape[-1] >= 1 << 31:
        raise CantLower("searches no sequence")
    if lead and source.shape[:-1] != shape[:-1]:
        raise CantLower("searches rows that aren't those of what is searched for")
    at = ir.compute_type(source.dtype)
    axes = (*range(lead), -1)

    def is_behind(place: str) -> str:
        """Whether x is behind the sequence's element at a place."""
        meets = ir.Take(b.fresh("met"), shape, source.dtype, sequence, lead, place, axes, tuple(range(rank)))
        stays = b.pointwise("gt" if right else "ge", b.add(meets), x, dtype="bool", at=at)
        return b.pointwise("not", stays, dtype="bool")

    first = b.expand(b.pointwise("copy", 0, dtype="int32"), shape)
    left = source.shape[-1]
    while left > 1:
        half = left // 2
        met = b.pointwise("add", first, half - 1, dtype="int32")
        further = b.pointwise("add", first, half, dtype="int32")
        first = b.pointwise("where", is_behind(met), further, first, dtype="int32")
        left -= half
    behind = b.pointwise("add", first, 1, dtype="int32")
    return b.finish(node, b.pointwise("where", is_behind(first), behind, first, dtype="int32"))


TABLE: dict[str, Lowering] = {"searchsorted": searchsorted, "bucketize": bucketize}
