"""Patches of images as columns, and columns added up to images: unfold, and fold, which gathers."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cuda_agent.core.graph import Node
from cuda_agent.playbook import ir
from cuda_agent.playbook.lower import Builder, CantLower, Lowering
from cuda_agent.playbook.operators.views import take_along


@dataclass(frozen=True)
class _Direction:
    """One spatial dimension: patch l has its tap k at element stride · l + dilation · k - before."""

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
    """The columns that meet in an element: taps[n] of patches[n], values of whole numbers over `sizes`, which the
    element's index is taken apart to. Taps lie below `below`, patches from `low` to `high`; some of them are none."""

    sizes: tuple[int, ...]
    taps: tuple[str, ...]
    patches: tuple[str, ...]
    low: int
    high: int
    below: int


def unfold(b: Builder, node: Node) -> str:
    """im2col: [..., channels · taps, patches], where patches may share elements."""
    x, meta = b.arg(node, 0), b.out(node)
    source, lead = b.values[x], len(b.values[x].shape) - 2
    numbers = [[int(n) for n in b.arg(node, at)] for at in range(1, 5)]
    directions = [_Direction(*of) for of in zip(source.shape[lead:], *numbers, strict=True)]
    padded = (*source.shape[:lead], *(d.size + 2 * d.before for d in directions))
    low = (*(0,) * lead, *(d.before for d in directions))
    x = b.add(ir.Pad(b.fresh("padded"), padded, source.dtype, x, low, source.shape, 0))
    sizes = (*source.shape[:lead], *(d.taps for d in directions), *(d.patches for d in directions))
    slid = (ir.Axis(lead + 2 + at, d.stride, 0, lead + at, d.dilation) for at, d in enumerate(directions))
    axes = (*(ir.Axis(d) for d in range(lead)), *slid)
    return b.reshape(b.add(ir.Strided(b.fresh("patches"), sizes, source.dtype, x, axes)), meta.shape, node.name)


def fold(b: Builder, node: Node) -> str:
    """col2im of [..., channels · taps, patches], one direction after the other."""
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
    """x without its dimension `taps`, and with elements, into which they are added, along its dimension `patches`."""
    shape, dtype = b.values[x].shape, b.values[x].dtype
    meeting = _meeting(b, d)
    padded, low = list(shape), [0] * len(shape)
    padded[taps], low[patches] = meeting.below, -meeting.low
    padded[patches] = max(meeting.high + 1, d.patches) - meeting.low
    x = b.add(ir.Pad(b.fresh("padded"), tuple(padded), dtype, x, tuple(low), shape, 0.0))
    wide = (*padded[:patches], *meeting.sizes, *padded[patches + 1 :])
    kept = (*wide[:taps], *wide[taps + 1 :])
    axes = (*range(taps), -1, *range(taps, len(kept)))
    along = tuple(range(patches - 1, patches - 1 + len(meeting.sizes)))
    total: str | None = None
    for tap, patch in zip(meeting.taps, meeting.patches, strict=True):
        place = b.pointwise("sub", patch, meeting.low, dtype="int32")
        column = take_along(b, b.fresh("column"), x, patches, place, ir.Value("", wide, dtype))
        one = b.add(ir.Take(b.fresh("one"), kept, dtype, column, taps, tap, axes, along))
        total = one if total is None else b.pointwise("add", total, one, dtype=dtype)
    assert total is not None
    return b.reshape(total, (*shape[:taps], *shape[taps + 1 : patches], d.size, *shape[patches + 1 :]))


def _meeting(b: Builder, d: _Direction) -> _Meeting:
    """stride · l + dilation · k = place = element + before. Both divided by what they share, k · dilation is
    place (mod stride): one k below the stride, and every stride-th one after it."""
    shared = math.gcd(d.stride, d.dilation)
    stride, dilation = d.stride // shared, d.dilation // shared

    def counted(sizes: tuple[int, ...], dim: int, start: int = 0) -> str:
        shape = tuple(size if at == dim else 1 for at, size in enumerate(sizes))
        return b.add(ir.Iota(b.fresh("counted"), shape, "int32", dim, start))

    def whole(op: str, x: str, y: str | int) -> str:
        return x if y == 1 and op in ("quotient", "mul") else b.pointwise(op, x, y, dtype="int32")

    # In periods of the stride: everything but the period's number depends on the place in it alone.
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
        meets = b.pointwise("eq", whole("modulo", place, shared), 0, dtype="bool", at="i32")
        taps = [b.pointwise("where", meets, tap, count * stride, dtype="int32") for tap in taps]
    return _Meeting(
        sizes,
        tuple(taps),
        tuple(whole("sub", patch, n * dilation) for n in range(count)),
        low=-((stride - 1) * dilation // stride) - (count - 1) * dilation,
        high=most + last // shared // stride,
        below=count * stride + (shared > 1),
    )


TABLE: dict[str, Lowering] = {"im2col": unfold, "col2im": fold}
