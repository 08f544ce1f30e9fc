"""Attention's operands and result where they lie, and the launcher's numbers for them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cuda_agent.core.graph import Node
from cuda_agent.playbook import ir
from cuda_agent.playbook.algebra.match import order_of
from cuda_agent.playbook.plan import PlanState, StridedView
from cuda_agent.playbook.skills.attention.call import Attention
from cuda_agent.playbook.skills.shared.operands import collapsed, plain_copy, windows


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


@dataclass(frozen=True)
class Operands:
    """Windows on q, [batch…, group, rows, width], k, v, the result and the mask."""

    q: StridedView
    k: StridedView
    v: StridedView
    out: StridedView
    mask: StridedView | None

    def geometry(self, call: Attention) -> tuple[list[int], list[int]] | None:
        """Returns the sizes and the strides for the launcher, None where the batch has more than two levels."""
        rank = len(call.batch)
        mask = self.mask or StridedView("", (), (0,) * (rank + 3), 0)
        views = (self.q, self.k, self.v, self.out, mask)
        levels = batch_levels(call.batch, views)
        if levels is None:
            return None
        outer, inner = levels
        strides = []
        for place, view in enumerate(views, 1):
            strides += [outer[place], inner[place], *view.strides[rank:-1]]
        return [outer[0], inner[0], call.group, call.rows, call.keys], [*strides, mask.strides[-1]]


def place(state: PlanState, node: Node, call: Attention) -> tuple[Operands, StridedView, list[int], list[int]] | None:
    """Returns the operands, put into memory, the result, and the launcher's sizes and strides. Returns None where the
    batch has more than two levels even in copies."""
    shape = (*call.batch[:-1], call.batch[-1] * call.group, call.rows, call.value)
    plain = StridedView(node.name, shape, ir.contiguous(shape), 0)
    for copied in (False, True):
        q, k, v = (_read_where_it_lies(state, name, call.form.words, copied) for name in (call.q, call.k, call.v))
        result = plain if copied else result_view(state, node, plain, call.form.words)
        operands = Operands(
            _split(q, call.group), k, v, _split(result, call.group),
            _mask(state, call),
        )  # fmt: skip
        numbers = operands.geometry(call)
        if numbers is not None:
            return operands, result, *numbers
    return None
