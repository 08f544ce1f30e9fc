"""Operators that only move indices, and those that make indices."""

from __future__ import annotations

from typing import Any

from cuda_agent.core.graph import Node
from cuda_agent.playbook import ir
from cuda_agent.playbook.lower import Builder, CantLower, Lowering


def reshape(b: Builder, node: Node) -> str:
    """view, reshape, flatten, unflatten: the captured shape says it all."""
    return b.reshape(b.arg(node, 0), b.out(node).shape, node.name)


def permute(b: Builder, node: Node) -> str:
    return _permuted(b, node, list(b.arg(node, 1, "dims")))


def transpose(b: Builder, node: Node) -> str:
    order = list(range(len(b.value(b.arg(node, 0)).shape)))
    i, j = b.arg(node, 1), b.arg(node, 2)
    if order:
        order[i], order[j] = order[j], order[i]
    return _permuted(b, node, order)


def reverse_dims(b: Builder, node: Node) -> str:
    """t, numpy_T, mT where there are two dimensions at most."""
    rank = len(b.value(b.arg(node, 0)).shape)
    return _permuted(b, node, list(range(rank))[::-1])


def _permuted(b: Builder, node: Node, order: list[int]) -> str:
    x, meta = b.arg(node, 0), b.out(node)
    order = [d % len(order) for d in order]
    axes = tuple(ir.Axis(order.index(d)) for d in range(len(order)))
    return b.add(ir.Strided(node.name, meta.shape, meta.dtype, x, axes))


def expand(b: Builder, node: Node) -> str:
    return b.expand(b.arg(node, 0), b.out(node).shape, node.name)


def drop_or_add_ones(b: Builder, node: Node) -> str:
    """squeeze and unsqueeze."""
    return b.reshape(b.arg(node, 0), b.out(node).shape, node.name)


def _window(b: Builder, x: str, shape: tuple[int, ...], dim: int, start: int, step: int, name: str) -> str:
    source = b.values[x]
    axes = tuple(ir.Axis(d, step if d == dim else 1, start if d == dim else 0) for d in range(len(source.shape)))
    return b.add(ir.Strided(name, shape, source.dtype, x, axes))


def slice_(b: Builder, node: Node) -> str:
    x, meta = b.arg(node, 0), b.out(node)
    rank, size = len(b.values[x].shape), b.values[x].shape
    dim = int(b.arg(node, 1, "dim", 0)) % rank
    start, step = b.arg(node, 2, "start"), int(b.arg(node, 4, "step", 1))
    start = 0 if start is None else int(start)
    start = max(start + size[dim], 0) if start < 0 else min(start, size[dim])
    return _window(b, x, meta.shape, dim, start, step, node.name)


def narrow(b: Builder, node: Node) -> str:
    x, meta = b.arg(node, 0), b.out(node)
    dim = int(b.arg(node, 1)) % len(meta.shape)
    return _window(b, x, meta.shape, dim, int(b.arg(node, 2)) % max(b.values[x].shape[dim], 1), 1, node.name)


def select(b: Builder, node: Node) -> str:
    x, meta = b.arg(node, 0), b.out(node)
    shape = b.values[x].shape
    dim = int(b.arg(node, 1)) % len(shape)
    index = int(b.arg(node, 2)) % shape[dim]
    axes = []
    for d in range(len(shape)):
        axes.append(ir.Axis(None, 1, index) if d == dim else ir.Axis(d - (d > dim)))
    return b.add(ir.Strided(node.name, meta.shape, meta.dtype, x, tuple(axes)))


def flip(b: Builder, node: Node) -> str:
    x, meta = b.arg(node, 0), b.out(node)
    dims = {int(d) % len(meta.shape) for d in b.arg(node, 1)}
    axes = tuple(ir.Axis(d, -1, size - 1) if d in dims else ir.Axis(d) for d, size in enumerate(meta.shape))
    return b.add(ir.Strided(node.name, meta.shape, meta.dtype, x, axes))


def split(b: Builder, node: Node) -> tuple[str, ...]:
    """chunk, split, split_with_sizes, unsafe_split, tensor_split: the captured shapes say where."""
    x = b.arg(node, 0)
    rank = len(b.values[x].shape)
    position = 2
    dim = int(b.arg(node, position, "dim", 0)) % rank
    start, pieces = 0, []
    for index in range(len(node.outputs)):
        shape = b.out(node, index).shape
        pieces.append(_window(b, x, shape, dim, start, 1, b.fresh(node.name)))
        start += shape[dim]
    return tuple(pieces)


def unbind(b: Builder, node: Node) -> tuple[str, ...]:
    x, dim = b.arg(node, 0), int(b.arg(node, 1, "dim", 0))
    shape = b.values[x].shape
    dim %= len(shape)
    pieces = []
    for index in range(shape[dim]):
        axes = tuple(ir.Axis(None, 1, index) if d == dim else ir.Axis(d - (d > dim)) for d in range(len(shape)))
        pieces.append(b.add(ir.Strided(b.fresh(node.name), b.out(node, index).shape, b.values[x].dtype, x, axes)))
    return tuple(pieces)


def cat(b: Builder, node: Node) -> str:
    meta, dim = b.out(node), int(b.arg(node, 1, "dim", 0)) % len(b.out(node).shape)
    args = [arg for arg in b.arg(node, 0) if 0 not in b.values[arg].shape]
    if not args:
        raise CantLower("joins nothing")
    args = [b.cast(arg, meta.dtype) for arg in args]
    sizes = tuple(b.values[arg].shape[dim] for arg in args)
    return b.add(ir.Cat(node.name, meta.shape, meta.dtype, tuple(args), sizes, dim))


def stack(b: Builder, node: Node) -> str:
    meta, dim = b.out(node), int(b.arg(node, 1, "dim", 0)) % len(b.out(node).shape)
    shape = tuple(1 if d == dim else size for d, size in enumerate(meta.shape))
    args = tuple(b.reshape(b.cast(arg, meta.dtype), shape) for arg in b.arg(node, 0))
    return b.add(ir.Cat(node.name, meta.shape, meta.dtype, args, (1,) * len(args), dim))


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
            # Less than nothing cuts off.
            shape = list(b.values[x].shape)
            shape[dim] += min(before, 0) + min(after, 0)
            x = _window(b, x, tuple(shape), dim, max(-before, 0), 1, b.fresh(f"{node.name}_cut"))
        low[dim] = max(before, 0)
    return b.add(ir.Pad(node.name, meta.shape, meta.dtype, x, tuple(low), b.values[x].shape, fill or 0))


def gather(b: Builder, node: Node) -> str:
    x, dim, index, meta = b.arg(node, 0), int(b.arg(node, 1)), b.arg(node, 2), b.out(node)
    rank = len(b.values[x].shape)
    if rank == 0:
        raise CantLower("gathers from a scalar")
    dim %= rank
    axes = tuple(-1 if d == dim else d for d in range(rank))
    return b.add(ir.Take(node.name, meta.shape, meta.dtype, x, dim, index, axes, tuple(range(rank))))


def take_along(b: Builder, name: str, x: str, dim: int, index: str, meta: Any) -> str:
    """index_select and embedding: the index's dimensions stand where `dim` was."""
    rank, picks = len(b.values[x].shape), len(b.values[index].shape)
    axes = tuple(-1 if d == dim else d + (picks - 1) * (d > dim) for d in range(rank))
    return b.add(ir.Take(name, meta.shape, meta.dtype, x, dim, index, axes, tuple(range(dim, dim + picks))))


def index_select(b: Builder, node: Node) -> str:
    x, dim, index = b.arg(node, 0), int(b.arg(node, 1)), b.arg(node, 2)
    return take_along(b, node.name, x, dim % len(b.values[x].shape), index, b.out(node))


def embedding(b: Builder, node: Node) -> str:
    return take_along(b, node.name, b.arg(node, 0), 0, b.arg(node, 1), b.out(node))


def index(b: Builder, node: Node) -> str:
    """x[:, idx] and x[:, i, j]: tensors of integers for neighbouring dimensions, among slices."""
    x, picks = b.arg(node, 0), b.arg(node, 1)
    used = [d for d, pick in enumerate(picks) if pick is not None]
    if any(b.values[picks[d]].dtype in ("bool", "uint8") for d in used):
        raise CantLower("indexes by a mask")
    if not used or used[-1] - used[0] + 1 != len(used):
        raise CantLower("indexes dimensions that aren't neighbours")
    first, shape = used[0], b.values[x].shape
    sizes = shape[first : used[-1] + 1]
    place = picks[first]
    if len(used) > 1:
        x = b.reshape(x, (*shape[:first], ir.numel(sizes), *shape[used[-1] + 1 :]))
        place = _one_index(b, [picks[d] for d in used], sizes)
    return take_along(b, node.name, x, first, place, b.out(node))


def _one_index(b: Builder, picks: list[str], sizes: tuple[int, ...]) -> str:
    """Indices of several dimensions as one of their row-major order; negative ones count from the end."""
    dtype = "int32" if ir.numel(sizes) < 1 << 31 else "int64"
    total: str | None = None
    for pick, size, step in zip(picks, sizes, ir.contiguous(sizes), strict=True):
        near = b.pointwise("wrap_index", b.cast(pick, dtype), size, dtype=dtype)
        near = b.pointwise("mul", near, step, dtype=dtype)
        total = near if total is None else b.pointwise("add", total, near, dtype=dtype)
    assert total is not None
    return total


def slice_scatter(b: Builder, node: Node) -> str:
    """A copy in which a slice along one dimension is replaced."""
    base, part = b.arg(node, 0), b.arg(node, 1)
    shape = b.out(node).shape
    dim = int(b.arg(node, 2, "dim", 0)) % len(shape)
    if int(b.arg(node, 5, "step", 1)) != 1:
        raise CantLower("replaces every other element")
    start = int(b.arg(node, 3, "start") or 0)
    start = max(start + shape[dim], 0) if start < 0 else min(start, shape[dim])
    return _replaced(b, node, base, part, dim, start)


def select_scatter(b: Builder, node: Node) -> str:
    """A copy in which one index of a dimension is replaced."""
    base, part = b.arg(node, 0), b.arg(node, 1)
    shape = b.out(node).shape
    dim = int(b.arg(node, 2)) % len(shape)
    part = b.reshape(part, tuple(1 if d == dim else size for d, size in enumerate(shape)))
    return _replaced(b, node, base, part, dim, int(b.arg(node, 3)) % shape[dim])


def _replaced(b: Builder, node: Node, base: str, part: str, dim: int, start: int) -> str:
    """What lies before, the new part, what lies after."""
    meta, after = b.out(node), start + b.values[part].shape[dim]

    def kept(first: int, end: int) -> str:
        shape = tuple(end - first if d == dim else n for d, n in enumerate(meta.shape))
        return _window(b, base, shape, dim, first, 1, b.fresh("kept"))

    pieces = [kept(0, start), part, kept(after, meta.shape[dim])]
    pieces = [b.cast(piece, meta.dtype) for piece in pieces if b.values[piece].shape[dim]]
    sizes = tuple(b.values[piece].shape[dim] for piece in pieces)
    return b.add(ir.Cat(node.name, meta.shape, meta.dtype, tuple(pieces), sizes, dim))


def overwritten(b: Builder, node: Node) -> str:
    """copy: another tensor's values in this one's shape and dtype. fill: a number."""
    value = b.arg(node, 1, "value")
    if not isinstance(value, str):
        value = b.pointwise("copy", value, dtype=b.out(node).dtype)
    return b.finish(node, value)


def roll(b: Builder, node: Node) -> str:
    """The tail, then the head, in each rolled dimension."""
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
    source = b.values[x]
    size = source.shape[dim]
    head = shift % size
    if head == 0:
        return b.reshape(x, source.shape, name)
    shapes = [tuple(part if d == dim else n for d, n in enumerate(source.shape)) for part in (head, size - head)]
    tail = _window(b, x, shapes[0], dim, size - head, 1, b.fresh("tail"))
    rest = _window(b, x, shapes[1], dim, 0, 1, b.fresh("rest"))
    return b.add(ir.Cat(name, source.shape, source.dtype, (tail, rest), (head, size - head), dim))


def repeat(b: Builder, node: Node) -> str:
    """Copies as dimensions of their own, then merged."""
    x, times, meta = b.arg(node, 0), b.arg(node, 1), b.out(node)
    source = b.values[x]
    shape = (1,) * (len(times) - len(source.shape)) + source.shape
    pairs = tuple(size for count, n in zip(times, shape, strict=True) for size in (int(count), n))
    single = b.reshape(x, tuple(size for n in shape for size in (1, n)))
    return b.reshape(b.expand(single, pairs), meta.shape, node.name)


def full(b: Builder, node: Node) -> str:
    """zeros, ones, full and their _like forms; empty ones may hold anything."""
    name, meta = node.op.split(".")[1], b.out(node)
    fill: Any = 1 if name.startswith(("ones", "new_ones")) else 0
    if "full" in name or name == "scalar_tensor":
        position = 0 if name == "scalar_tensor" else 2 if name == "new_full" else 1
        fill = b.arg(node, position, "fill_value", 0)
    value = b.pointwise("copy", fill, dtype=meta.dtype)
    return b.expand(value, meta.shape, node.name)


def arange(b: Builder, node: Node) -> str:
    meta = b.out(node)
    numbers = [b.plain(arg) for arg in node.args if isinstance(b.plain(arg), int | float)]
    start, step = (0, 1) if len(numbers) < 2 else (numbers[0], numbers[2] if len(numbers) > 2 else 1)
    if not isinstance(start, int) or not isinstance(step, int):
        raise CantLower("counts in fractions")
    step = int(b.plain(node.kwargs.get("step", step)))
    return b.add(ir.Iota(node.name, meta.shape, meta.dtype, 0, int(start), step))


def triangle(b: Builder, node: Node) -> str:
    """tril and triu."""
    x, diagonal, meta = b.arg(node, 0), int(b.arg(node, 1, "diagonal", 0)), b.out(node)
    rank = len(meta.shape)
    row = b.add(ir.Iota(b.fresh("row"), meta.shape, "int32", rank - 2))
    col = b.add(ir.Iota(b.fresh("col"), meta.shape, "int32", rank - 1))
    offset = b.pointwise("sub", col, row, dtype="int32")
    keep = b.pointwise("le" if "tril" in node.op else "ge", offset, diagonal, dtype="bool", at="i32")
    return b.pointwise("where", keep, x, 0, dtype=meta.dtype, name=node.name)


TABLE: dict[str, Lowering] = {
    "view": reshape, "reshape": reshape, "_unsafe_view": reshape, "flatten": reshape, "unflatten": reshape,
    "view_as": reshape, "reshape_as": reshape, "ravel": reshape,
    "permute": permute, "transpose": transpose, "swapaxes": transpose, "t": reverse_dims, "numpy_T": reverse_dims,
    "expand": expand, "expand_as": expand, "broadcast_to": expand, "squeeze": drop_or_add_ones,
    "unsqueeze": drop_or_add_ones, "slice": slice_, "narrow": narrow, "select": select, "flip": flip, "chunk": split,
    "split": split, "split_with_sizes": split, "unsafe_split": split, "unsafe_chunk": split, "unbind": unbind,
    "cat": cat, "concat": cat, "concatenate": cat, "stack": stack, "pad": pad, "constant_pad_nd": pad,
    "gather": gather, "index_select": index_select, "embedding": embedding, "index": index, "zeros": full, "ones": full,
    "full": full, "zeros_like": full, "ones_like": full, "full_like": full, "new_zeros": full, "new_ones": full,
    "new_full": full, "scalar_tensor": full, "empty": full, "empty_like": full, "new_empty": full,
    "empty_permuted": full, "arange": arange, "tril": triangle, "roll": roll, "repeat": repeat, "triu": triangle,
    "slice_scatter": slice_scatter, "select_scatter": select_scatter, "copy": overwritten, "fill": overwritten,
}  # fmt: skip
