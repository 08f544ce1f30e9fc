"""Lowers views, concatenations and gathers, which only move indices, and operators that create tensors."""

from typing import Any

from cuda_agent.core.graph import Node
from cuda_agent.playbook import ir
from cuda_agent.playbook.lower import Builder, CantLower


def reshape(b: Builder, node: Node) -> str:
    """Lowers view, reshape, flatten, unflatten, squeeze and unsqueeze by the captured shape."""
    return b.reshape(b.arg(node, 0), b.out(node).shape, node.name)


def permute(b: Builder, node: Node) -> str:
    return _permuted(b, node, list(b.arg(node, 1, "dims")))


def transpose(b: Builder, node: Node) -> str:
    x, i, j = b.args(node, 0, 1, 2)
    order = list(range(b.rank(x)))
    if order:
        order[i], order[j] = order[j], order[i]
    return _permuted(b, node, order)


def reverse_dims(b: Builder, node: Node) -> str:
    """Lowers t and numpy_T."""
    return _permuted(b, node, list(range(b.rank(b.arg(node, 0))))[::-1])


def _permuted(b: Builder, node: Node, order: list[int]) -> str:
    order = [d % len(order) for d in order]
    axes = [ir.Axis(order.index(d)) for d in range(len(order))]
    return b.view(node.name, b.out(node).shape, b.arg(node, 0), axes)


def expand(b: Builder, node: Node) -> str:
    return b.expand(b.arg(node, 0), b.out(node).shape, node.name)


def _start(given: Any, size: int) -> int:
    """Returns the first index of a slice, which may count from the end and is clipped."""
    start = 0 if given is None else int(given)
    return max(start + size, 0) if start < 0 else min(start, size)


def slice_(b: Builder, node: Node) -> str:
    x = b.arg(node, 0)
    dim = int(b.arg(node, 1, "dim", 0)) % b.rank(x)
    start, step = _start(b.arg(node, 2, "start"), b.shape_of(x)[dim]), int(b.arg(node, 4, "step", 1))
    return b.slice(x, dim, start, b.out(node).shape[dim], name=node.name, step=step)


def narrow(b: Builder, node: Node) -> str:
    x, dim, start = b.args(node, 0, 1, 2)
    dim = int(dim) % b.rank(x)
    return b.slice(x, dim, int(start) % max(b.shape_of(x)[dim], 1), b.out(node).shape[dim], name=node.name)


def select(b: Builder, node: Node) -> str:
    x, dim, index = b.args(node, 0, 1, 2)
    dim = int(dim) % b.rank(x)
    return b.select(x, dim, int(index) % b.shape_of(x)[dim], name=node.name)


def flip(b: Builder, node: Node) -> str:
    shape = b.out(node).shape
    dims = {int(d) % len(shape) for d in b.arg(node, 1) if shape}
    axes = [ir.Axis(d, -1, size - 1) if d in dims else ir.Axis(d) for d, size in enumerate(shape)]
    return b.view(node.name, shape, b.arg(node, 0), axes)


def split(b: Builder, node: Node) -> tuple[str, ...]:
    """Lowers chunk, split, split_with_sizes and unsafe_split by the captured shapes."""
    x, dim = b.arg(node, 0), b.arg(node, 2, "dim", 0)
    dim = int(dim) % b.rank(x)
    start, pieces = 0, []
    for index in range(len(node.outputs)):
        size = b.out(node, index).shape[dim]
        pieces.append(b.slice(x, dim, start, size, name=b.fresh(node.name)))
        start += size
    return tuple(pieces)


def unbind(b: Builder, node: Node) -> tuple[str, ...]:
    x, dim = b.arg(node, 0), int(b.arg(node, 1, "dim", 0))
    dim %= b.rank(x)
    return tuple(b.select(x, dim, index, name=b.fresh(node.name)) for index in range(b.shape_of(x)[dim]))


def _joined(b: Builder, name: str, shape: tuple[int, ...], parts: list[str], dim: int) -> str:
    """Adds the concatenation of values along a dimension."""
    sizes = tuple(b.shape_of(part)[dim] for part in parts)
    return b.add(ir.Cat(name, shape, b.values[parts[0]].dtype, tuple(parts), sizes, dim))


def cat(b: Builder, node: Node) -> str:
    meta = b.out(node)
    args = [arg for arg in b.arg(node, 0) if 0 not in b.shape_of(arg)]
    if not args:
        raise CantLower("joins nothing")
    args = [b.cast(arg, meta.dtype) for arg in args]
    return _joined(b, node.name, meta.shape, args, int(b.arg(node, 1, "dim", 0)) % len(meta.shape))


def stack(b: Builder, node: Node) -> str:
    meta, dim = b.out(node), int(b.arg(node, 1, "dim", 0)) % len(b.out(node).shape)
    args = [b.reshape(b.cast(arg, meta.dtype), ir.resized(meta.shape, dim, 1)) for arg in b.arg(node, 0)]
    return _joined(b, node.name, meta.shape, args, dim)


def pad(b: Builder, node: Node) -> str:
    x, widths, meta = b.arg(node, 0), b.arg(node, 1), b.out(node)
    mode, fill = "constant", b.arg(node, 2, "value", 0)
    if isinstance(fill, str):
        mode, fill = fill, b.arg(node, 3, "value", 0)
    if mode != "constant":
        raise CantLower("pads otherwise than by a constant")
    low = [0] * len(meta.shape)
    for index in range(len(widths) // 2):
        dim = len(low) - 1 - index
        before, after = widths[2 * index : 2 * index + 2]
        if min(before, after) < 0:
            # A negative width cuts elements off.
            size = b.shape_of(x)[dim] + min(before, 0) + min(after, 0)
            x = b.slice(x, dim, max(-before, 0), size, name=b.fresh(f"{node.name}_cut"))
        low[dim] = max(before, 0)
    return b.add(ir.Pad(node.name, meta.shape, meta.dtype, x, tuple(low), b.shape_of(x), fill or 0))


def gather(b: Builder, node: Node) -> str:
    x, dim, index, meta = b.arg(node, 0), int(b.arg(node, 1)), b.arg(node, 2), b.out(node)
    rank = b.rank(x)
    if rank == 0:
        raise CantLower("gathers from a scalar")
    dim %= rank
    axes = tuple(-1 if d == dim else d for d in range(rank))
    return b.add(ir.Take(node.name, meta.shape, meta.dtype, x, dim, index, axes, tuple(range(rank))))


def index_select(b: Builder, node: Node) -> str:
    x, dim, index = b.args(node, 0, 1, 2)
    return b.take(x, int(dim) % b.rank(x), index, name=node.name)


def embedding(b: Builder, node: Node) -> str:
    return b.take(b.arg(node, 0), 0, b.arg(node, 1), name=node.name)


def index(b: Builder, node: Node) -> str:
    """Lowers x[:, idx] and x[:, i, j]: integer tensors for adjacent dimensions, among slices."""
    x, picks = b.args(node, 0, 1)
    used = [d for d, pick in enumerate(picks) if pick is not None]
    if any(b.values[picks[d]].dtype in ("bool", "uint8") for d in used):
        raise CantLower("indexes by a mask")
    if not used or used[-1] - used[0] + 1 != len(used):
        raise CantLower("indexes dimensions that aren't neighbours")
    first, shape = used[0], b.shape_of(x)
    sizes = shape[first : used[-1] + 1]
    place = picks[first]
    if len(used) > 1:
        x = b.reshape(x, (*shape[:first], ir.numel(sizes), *shape[used[-1] + 1 :]))
        place = _one_index(b, [picks[d] for d in used], sizes)
    return b.take(x, first, place, name=node.name, wraps=True)


def _one_index(b: Builder, picks: list[str], sizes: tuple[int, ...]) -> str:
    """Adds the row-major index of indices along several dimensions. Negative ones count from the end."""
    dtype = "int32" if ir.numel(sizes) < 1 << 31 else "int64"
    op, total = b.typed(dtype), ""
    for pick, size, step in zip(picks, sizes, ir.contiguous(sizes), strict=True):
        near = op("mul", op("wrap_index", b.cast(pick, dtype), size), step)
        total = op("add", total, near) if total else near
    return total


def index_put(b: Builder, node: Node) -> str:
    """Lowers index_put at one place of each indexed dimension, such as that of a new token in a cache: a choice by
    position, so that the copy is fused with what reads it."""
    base, picks, values, meta = b.arg(node, 0), b.arg(node, 1), b.arg(node, 2), b.out(node)
    used = [d for d, pick in enumerate(picks) if pick is not None]
    if any(b.values[picks[d]].dtype in ("bool", "uint8") or ir.numel(b.shape_of(picks[d])) != 1 for d in used):
        raise CantLower("changes several places")
    if not used or used[-1] - used[0] + 1 != len(used):
        raise CantLower("indexes dimensions that aren't neighbours")
    here = ""
    for d in used:
        place = b.typed("int32")("wrap_index", b.cast(b.reshape(picks[d], ()), "int32"), meta.shape[d])
        same = b.test("eq", b.iota("at", meta.shape, d), place, at="i32")
        here = b.test("and", here, same) if here else same
    joint = b.shape(*(picks[d] for d in used))
    whole = b.expand(values, (*meta.shape[: used[0]], *joint, *meta.shape[used[-1] + 1 :]))
    single = tuple(1 if d in used else size for d, size in enumerate(meta.shape))
    value = b.reshape(whole, single)
    if b.arg(node, 3, "accumulate", False):
        value = b.pointwise("add", base, value, dtype=b.internal(meta.dtype))
    return b.result(node, "where", here, value, base)


def slice_scatter(b: Builder, node: Node) -> str:
    """Lowers slice_scatter: a copy in which a slice along one dimension is replaced."""
    base, part = b.args(node, 0, 1)
    shape = b.out(node).shape
    dim = int(b.arg(node, 2, "dim", 0)) % len(shape)
    if int(b.arg(node, 5, "step", 1)) != 1:
        raise CantLower("replaces every other element")
    return _replaced(b, node, base, part, dim, _start(b.arg(node, 3, "start"), shape[dim]))


def select_scatter(b: Builder, node: Node) -> str:
    """Lowers select_scatter: a copy in which one index of a dimension is replaced."""
    base, part, dim, index = b.args(node, 0, 1, 2, 3)
    shape = b.out(node).shape
    dim = int(dim) % len(shape)
    part = b.reshape(part, ir.resized(shape, dim, 1))
    return _replaced(b, node, base, part, dim, int(index) % shape[dim])


def _replaced(b: Builder, node: Node, base: str, part: str, dim: int, start: int) -> str:
    """Joins the elements before the new part, the new part, and the elements after it."""
    meta, after = b.out(node), start + b.shape_of(part)[dim]
    head = b.slice(base, dim, 0, start, name=b.fresh("kept"))
    tail = b.slice(base, dim, after, meta.shape[dim] - after, name=b.fresh("kept"))
    pieces = [b.cast(piece, meta.dtype) for piece in (head, part, tail) if b.shape_of(piece)[dim]]
    return _joined(b, node.name, meta.shape, pieces, dim)


def overwritten(b: Builder, node: Node) -> str:
    """Lowers copy, another tensor's values in this one's shape and dtype, and fill, a number."""
    value = b.arg(node, 1, "value")
    if not isinstance(value, str):
        value = b.pointwise("copy", value, dtype=b.out(node).dtype)
    return b.finish(node, value)


def roll(b: Builder, node: Node) -> str:
    """Lowers roll: the tail, then the head, in each rolled dimension."""
    x, shifts, dims = b.arg(node, 0), b.arg(node, 1), b.arg(node, 2, "dims", [])
    shape = b.out(node).shape
    if not dims:
        flat = b.reshape(x, (ir.numel(shape),))
        return b.reshape(_rolled(b, flat, 0, int(shifts[0]), b.fresh("rolled")), shape, node.name)
    for number, (shift, dim) in enumerate(zip(shifts, dims, strict=True)):
        name = node.name if number == len(dims) - 1 else b.fresh("rolled")
        x = _rolled(b, x, int(dim) % len(shape), int(shift), name)
    return str(x)


def _rolled(b: Builder, x: str, dim: int, shift: int, name: str) -> str:
    shape = b.shape_of(x)
    size = shape[dim]
    head = shift % size
    if head == 0:
        return b.reshape(x, shape, name)
    tail = b.slice(x, dim, size - head, head, name=b.fresh("tail"))
    rest = b.slice(x, dim, 0, size - head, name=b.fresh("rest"))
    return _joined(b, name, shape, [tail, rest], dim)


def repeat(b: Builder, node: Node) -> str:
    """Lowers repeat: the copies are extra dimensions, which are then merged."""
    x, times = b.args(node, 0, 1)
    shape = (1,) * (len(times) - b.rank(x)) + b.shape_of(x)
    pairs = tuple(size for count, n in zip(times, shape, strict=True) for size in (int(count), n))
    single = b.reshape(x, tuple(size for n in shape for size in (1, n)))
    return b.reshape(b.expand(single, pairs), b.out(node).shape, node.name)


def full(b: Builder, node: Node) -> str:
    """Lowers zeros, ones, full and empty, and their _like and new_ forms."""
    name, meta = node.op.split(".")[1], b.out(node)
    fill: Any = 1 if name.startswith(("ones", "new_ones")) else 0
    if "full" in name or name == "scalar_tensor":
        position = 0 if name == "scalar_tensor" else 2 if name == "new_full" else 1
        fill = b.arg(node, position, "fill_value", 0)
    return b.expand(b.pointwise("copy", fill, dtype=meta.dtype), meta.shape, node.name)


def arange(b: Builder, node: Node) -> str:
    meta = b.out(node)
    numbers = [b.plain(arg) for arg in node.args if isinstance(b.plain(arg), int | float)]
    start, step = (0, 1) if len(numbers) < 2 else (numbers[0], numbers[2] if len(numbers) > 2 else 1)
    if not isinstance(start, int) or not isinstance(step, int):
        raise CantLower("counts in fractions")
    step = int(b.plain(node.kwargs.get("step", step)))
    return b.add(ir.Iota(node.name, meta.shape, meta.dtype, 0, int(start), step))


def triangle(b: Builder, node: Node) -> str:
    """Lowers tril and triu."""
    x, diagonal, shape = b.arg(node, 0), int(b.arg(node, 1, "diagonal", 0)), b.out(node).shape
    row = b.iota("row", shape, len(shape) - 2)
    col = b.iota("col", shape, len(shape) - 1)
    offset = b.pointwise("sub", col, row, dtype="int32")
    return b.result(node, "where", b.test("le" if "tril" in node.op else "ge", offset, diagonal, at="i32"), x, 0)
