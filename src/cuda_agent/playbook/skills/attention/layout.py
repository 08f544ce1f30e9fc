"""Attention's operands and result where they lie, and the launcher's numbers for them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

from cuda_agent.core.graph import Node
from cuda_agent.playbook import ir
from cuda_agent.playbook.algebra.match import order_of
from cuda_agent.playbook.plan import PlanState, StridedView
from cuda_agent.playbook.skills.attention.call import Attention
from cuda_agent.playbook.skills.shared.operands import collapsed, plain_copy, windows

#: with more rows the library's engines are faster, and the cache's copy is a small part of the work.
_FEW_ROWS = 16


def is_readable(view: StridedView, words: int) -> bool:
    """Returns whether rows are contiguous and every row and head begins at a multiple of so many elements, which are
    16 bytes."""
    steps = (*view.strides[:-1], view.offset)
    return view.strides[-1] == 1 and all(step % words == 0 for step in steps)


def result_view(state: PlanState, node: Node, plain: StridedView, words: int) -> StridedView:
    """Returns the result's layout: that of the graph's output, or the one that is row-major for its only reader, which
    puts the heads of a row side by side again by another order of the dimensions; else row-major, which is `plain`."""
    users, strides = state.users(node.name), plain.strides
    if state.is_output(node.name):
        strides = state.meta(node.name).strides
    elif len(users) == 1 and (order := order_of(users[0], len(plain.shape))) is not None:
        strides = ir.ordered_strides(plain.shape, order)
    view = replace(plain, strides=strides)
    is_dense = ir.same_strides(plain.shape, ir.dense_strides(plain.shape, strides), strides)
    return view if is_dense and is_readable(view, words) else plain


def batch_levels(sizes: Sequence[int], views: Sequence[StridedView]) -> tuple[tuple[int, ...], ...] | None:
    """Returns the batch dimensions as two levels (size, stride of each view), outer first, or None for more levels."""
    levels = collapsed(sizes, *(view.strides[: len(sizes)] for view in views))
    nothing = (1, *(0 for _ in views))
    return None if len(levels) > 2 else tuple([nothing] * (2 - len(levels)) + levels)


def _split(view: StridedView, group: int) -> StridedView:
    """Returns [..., heads, rows, width] with the heads as two dimensions, of which the second has this size."""
    heads, step = view.shape[-3] // group, view.strides[-3]
    shape = (*view.shape[:-3], heads, group, *view.shape[-2:])
    return replace(view, shape=shape, strides=(*view.strides[:-3], step * group, step, *view.strides[-2:]))


def _read_where_it_lies(state: PlanState, name: str, words: int, copied: bool) -> StridedView:
    (view,) = windows(state, [name])
    return plain_copy(state, name) if copied or not is_readable(view, words) else view


def _mask(state: PlanState, call: Attention) -> StridedView | None:
    """Returns the window on the mask, broadcast to [batch…, group, rows, keys]."""
    if call.mask is None:
        return None
    (view,) = windows(state, [call.mask])
    sizes = (*call.batch[:-1], call.batch[-1] * call.group, call.rows, call.keys)
    steps = [0 if have == 1 else step for have, step in zip(view.shape, view.strides, strict=True)]
    strides = (*[0] * (len(sizes) - len(steps)), *steps)
    return _split(replace(view, shape=sizes, strides=strides), call.group)


def joined_keys(state: PlanState, call: Attention) -> tuple[str, ...]:
    """Returns the names of cached keys, cached values, new keys and new values, where a few rows attend to a cache with
    new tokens behind it: the kernel reads both, which saves a copy of the cache. Returns () for other calls."""
    builder = state.builder
    returned = set(map(builder.resolve, state.graph.outputs))
    parts, lengths = [], set()
    for name in (call.k, call.v):
        shape, value = state.meta(name).shape, builder.values[builder.resolve(name)]
        while isinstance(value, ir.Reshape):
            value = builder.values[builder.resolve(value.arg)]
        if not isinstance(value, ir.Cat) or value.dim != len(shape) - 2 or len(value.args) != 2 or value.shape != shape:
            return ()
        if not call.is_half or call.rows > _FEW_ROWS or value.name in state.resident or value.name in returned:
            return ()
        parts.append(value.args)
        lengths.add(value.sizes)
    return tuple(chain(*zip(*parts, strict=True))) if len(lengths) == 1 else ()


@dataclass(frozen=True)
class Operands:
    """Windows on q, [batch…, group, rows, width], k, v, the result and the mask; and on keys and values that follow
    those of k and v."""

    q: StridedView
    k: StridedView
    v: StridedView
    out: StridedView
    mask: StridedView | None
    more: tuple[StridedView, ...] = ()

    def geometry(self, call: Attention) -> tuple[list[int], list[int]] | None:
        """Returns the sizes and the strides for the launcher, None where the batch has more than two levels."""
        rank = len(call.batch)
        mask = self.mask or StridedView("", (), (0,) * (rank + 3), 0)
        views = (self.q, self.k, self.v, self.out, mask, *self.more)
        levels = batch_levels(call.batch, views)
        if levels is None:
            return None
        outer, inner = levels
        sizes, strides = [outer[0], inner[0], call.group, call.rows, call.keys], []
        for place, view in enumerate(views, 1):
            strides += [outer[place], inner[place], *view.strides[rank:-1]]
            if view is mask:
                strides += [mask.strides[-1], *[self.k.shape[-2]] * bool(self.more)]
        return sizes, strides


def place(
    state: PlanState, node: Node, call: Attention, keys: Sequence[str]
) -> tuple[Operands, StridedView, list[int], list[int]] | None:
    """Returns the operands, put into memory, the result, and the launcher's sizes and strides. `keys` are those of
    `joined_keys`, or k and v. Returns None where the batch has more than two levels even in copies."""
    shape = (*call.batch[:-1], call.batch[-1] * call.group, call.rows, call.value)
    plain = StridedView(node.name, shape, ir.contiguous(shape), 0)
    for copied in (False, True):
        q, k, v, *more = (_read_where_it_lies(state, name, call.form.words, copied) for name in (call.q, *keys))
        result = plain if copied else result_view(state, node, plain, call.form.words)
        operands = Operands(
            _split(q, call.group), k, v, _split(result, call.group),
            _mask(state, call), tuple(more),
        )  # fmt: skip
        numbers = operands.geometry(call)
        if numbers is not None:
            return operands, result, *numbers
    return None
