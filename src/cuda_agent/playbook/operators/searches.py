"""Lowers searches in sorted sequences to bisections with the same number of steps for every element, and histograms."""

from cuda_agent.core.graph import Node
from cuda_agent.playbook import ir
from cuda_agent.playbook.lower import Builder, CantLower


def searchsorted(b: Builder, node: Node) -> str:
    """Lowers searchsorted(sequence, x): rows of x in the rows of the sequence, or all of x in its only row."""
    if node.kwargs.get("sorter") is not None or len(node.args) > 2:
        raise CantLower("searches a sequence through its order")
    right = bool(node.kwargs.get("right", False)) or node.kwargs.get("side") == "right"
    return _searched(b, node, b.arg(node, 0), b.arg(node, 1), right)


def bucketize(b: Builder, node: Node) -> str:
    """Lowers bucketize(x, sequence), which is searchsorted(sequence, x)."""
    return _searched(b, node, b.arg(node, 1), b.arg(node, 0), bool(node.kwargs.get("right", False)))


def _searched(b: Builder, node: Node, sequence: str, x: str | ir.Scalar, right: bool) -> str:
    """Adds the number of elements less than x (with `right`, at most x). NaN is greater than all elements."""
    source, shape = b.values[sequence], b.out(node).shape
    lead, rank = len(source.shape) - 1, len(shape)
    if lead < 0 or source.shape[-1] == 0 or source.shape[-1] >= 1 << 31:
        raise CantLower("searches no sequence")
    if lead and source.shape[:-1] != shape[:-1]:
        raise CantLower("searches rows that aren't those of what is searched for")
    op, axes = b.typed("int32"), (*range(lead), -1)

    def is_greater(place: str) -> str:
        """Adds whether x belongs after the sequence's element at an index."""
        met = ir.Take(b.fresh("met"), shape, source.dtype, sequence, lead, place, axes, tuple(range(rank)))
        stays = b.test("gt" if right else "ge", b.add(met), x, at=ir.compute_type(source.dtype))
        return b.test("not", stays)

    first = b.expand(op("copy", 0), shape)
    left = source.shape[-1]
    while left > 1:
        half = left // 2
        met, further = op("add", first, half - 1), op("add", first, half)
        first = op("where", is_greater(met), further, first)
        left -= half
    behind = op("add", first, 1)
    return b.finish(node, op("where", is_greater(first), behind, first))


def histc(b: Builder, node: Node) -> str:
    """Lowers a histogram with fixed limits: for each bin the number of elements that fall into it."""
    x, bins = b.arg(node, 0), int(b.arg(node, 1, "bins", 100))
    low, high = (float(b.arg(node, at, name, 0)) for at, name in ((2, "min"), (3, "max")))
    if not low < high:
        raise CantLower("has limits that depend on the values")
    op, count = b.typed("float32"), ir.numel(b.shape_of(x))
    x = b.cast(b.reshape(x, (1, count)), "float32")
    place = op("minimum", op("trunc", op("div", op("mul", op("sub", x, low), float(bins)), high - low)), bins - 1.0)
    inside = b.test("and", b.test("ge", x, low, at="f32"), b.test("le", x, high, at="f32"))
    same = b.test("eq", place, b.cast(b.iota("bin", (bins, 1)), "float32"), at="f32")
    met = b.cast(b.test("and", inside, same), "int32")
    return b.finish(node, b.reduce("sum", met, [1], dtype="int32"))
