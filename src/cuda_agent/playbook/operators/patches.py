"""Lowers unfold, patches of images as columns, and fold, the sum of columns to images, which gathers."""

import math
from dataclasses import dataclass

from cuda_agent.core.graph import Node
from cuda_agent.playbook import ir
from cuda_agent.playbook.lower import Builder, CantLower


@dataclass(frozen=True)
class _Direction:
    """One spatial dimension. The tap k of patch l is the element stride · l + dilation · k - before."""

    size: int
    taps: int
    dilation: int
    before: int
    stride: int

    @property
    def patches(self) -> int:
        return (self.size + 2 * self.before - self.dilation * (self.taps - 1) - 1) // self.stride + 1


@dataclass(frozen=True)
class _Meeting:
    """The columns that are added to an element: taps[n] of patches[n], integer values over `sizes`, the shape to which
    the element's index is reshaped. Taps are less than `below`, patches in `low` … `high`. Some are out of range."""

    sizes: tuple[int, ...]
    taps: tuple[str, ...]
    patches: tuple[str, ...]
    low: int
    high: int
    below: int


def unfold(b: Builder, node: Node) -> str:
    """Lowers im2col: [..., channels · taps, patches], where patches may share elements."""
    x, meta = b.arg(node, 0), b.out(node)
    shape, lead = b.shape_of(x), b.rank(x) - 2
    numbers = [[int(n) for n in b.arg(node, at)] for at in range(1, 5)]
    directions = [_Direction(*of) for of in zip(shape[lead:], *numbers, strict=True)]
    padded = (*shape[:lead], *(d.size + 2 * d.before for d in directions))
    low = (*(0,) * lead, *(d.before for d in directions))
    x = b.pad(padded, x, low, 0)
    sizes = (*shape[:lead], *(d.taps for d in directions), *(d.patches for d in directions))
    slid = (ir.Axis(lead + 2 + at, d.stride, 0, lead + at, d.dilation) for at, d in enumerate(directions))
    axes = (*(ir.Axis(d) for d in range(lead)), *slid)
    return b.reshape(b.view(b.fresh("patches"), sizes, x, axes), meta.shape, node.name)


def fold(b: Builder, node: Node) -> str:
    """Lowers col2im of [..., channels · taps, patches], one direction after the other."""
    x, meta = b.arg(node, 0), b.out(node)
    if meta.dtype not in ir.FLOAT_DTYPES:
        raise CantLower("adds up what isn't floating")
    numbers = [[int(n) for n in b.arg(node, at)] for at in range(1, 6)]
    rows, columns = (_Direction(*of) for of in zip(*numbers, strict=True))
    lead = len(meta.shape) - 2
    x = b.reshape(x, (*meta.shape[:lead], rows.taps, columns.taps, rows.patches, columns.patches))
    x = _added(b, b.cast(x, b.internal(meta.dtype)), lead + 1, lead + 3, columns)
    return b.finish(node, _added(b, x, lead, lead + 1, rows))


def _added(b: Builder, x: str, taps: int, patches: int, d: _Direction) -> str:
    """Adds up the columns along one direction: dimension `taps` goes, and dimension `patches` becomes the elements."""
    shape, dtype = b.values[x].shape, b.values[x].dtype
    meeting = _meeting(b, d)
    padded, low = list(shape), [0] * len(shape)
    padded[taps], low[patches] = meeting.below, -meeting.low
    padded[patches] = max(meeting.high + 1, d.patches) - meeting.low
    x = b.pad(padded, x, low, 0.0)
    kept = ir.resized(ir.resized(padded, patches, *meeting.sizes), taps)
    axes = (*range(taps), -1, *range(taps, len(kept)))
    along = tuple(range(patches - 1, patches - 1 + len(meeting.sizes)))
    total = ""
    for tap, patch in zip(meeting.taps, meeting.patches, strict=True):
        place = b.pointwise("sub", patch, meeting.low, dtype="int32")
        column = b.take(x, patches, place, name=b.fresh("column"))
        one = b.add(ir.Take(b.fresh("one"), kept, dtype, column, taps, tap, axes, along))
        total = b.pointwise("add", total, one, dtype=dtype) if total else one
    return b.reshape(total, (*shape[:taps], *shape[taps + 1 : patches], d.size, *shape[patches + 1 :]))


def _meeting(b: Builder, d: _Direction) -> _Meeting:
    """Solves stride · l + dilation · k = place = element + before. With stride and dilation divided by their common
    factor, k · dilation is place (mod stride): one k below the stride, and every stride-th one after it."""
    shared = math.gcd(d.stride, d.dilation)
    stride, dilation = d.stride // shared, d.dilation // shared

    def counted(sizes: tuple[int, ...], dim: int, start: int = 0) -> str:
        return b.iota("counted", [size if at == dim else 1 for at, size in enumerate(sizes)], dim, start)

    def whole(op: str, x: str, y: str | int) -> str:
        return x if y == 1 and op in ("quotient", "mul") else b.pointwise(op, x, y, dtype="int32")

    # In periods of the stride, everything but the period's number depends only on the place in the period.
    if d.size % d.stride == 0:
        sizes: tuple[int, ...] = (d.size // d.stride, d.stride)
        period, place = counted(sizes, 0), counted(sizes, 1, d.before)
        last, most = d.before + d.stride - 1, sizes[0] - 1
    else:
        sizes = (d.size,)
        every = counted(sizes, 0, d.before)
        period, place = whole("quotient", every, d.stride), whole("modulo", every, d.stride)
        last, most = d.stride - 1, (d.before + d.size - 1) // d.stride
    near = whole("quotient", place, shared)
    first = whole("modulo", whole("mul", near, pow(dilation, -1, stride)), stride)
    ahead = whole("quotient", whole("mul", first, dilation), stride)
    patch = whole("sub", whole("add", period, whole("quotient", near, stride)), ahead)
    count = -(-d.taps // stride)
    taps = [whole("add", first, n * stride) for n in range(count)]
    if shared > 1:
        meets = b.test("eq", whole("modulo", place, shared), 0, at="i32")
        taps = [b.pointwise("where", meets, tap, count * stride, dtype="int32") for tap in taps]
    return _Meeting(
        sizes,
        tuple(taps),
        tuple(whole("sub", patch, n * dilation) for n in range(count)),
        low=-((stride - 1) * dilation // stride) - (count - 1) * dilation,
        high=most + last // shared // stride,
        below=count * stride + (shared > 1),
    )
