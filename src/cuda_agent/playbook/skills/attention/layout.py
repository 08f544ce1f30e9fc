"""Layouts of attention's operands and result."""

from __future__ import annotations

from dataclasses import replace

from cuda_agent.core.graph import Node
from cuda_agent.playbook import ir
from cuda_agent.playbook.algebra.emit import integers
from cuda_agent.playbook.plan import PlanState, StridedView


def is_readable(view: StridedView, words: int) -> bool:
    """Returns whether rows are contiguous and every row and head begins at a multiple of so many elements, which are
    16 bytes."""
    steps = (*view.strides[:-1], view.offset)
    return view.strides[-1] == 1 and all(step % words == 0 for step in steps)


def result_view(state: PlanState, node: Node, plain: StridedView, words: int) -> StridedView:
    """Returns the result's layout: that of the graph's output, or the one that is row-major for its only reader, which
    puts the heads of a row side by side again by another order of the dimensions; else row-major, which is `plain`."""
    users, rank = state.users(node.name), len(plain.shape)
    strides = plain.strides
    if state.is_output(node.name):
        strides = state.meta(node.name).strides
    elif len(users) == 1 and users[0].op in ("aten.permute.default", "aten.transpose.int"):
        order = list(range(rank))
        if users[0].op == "aten.permute.default":
            order = [dim % rank for dim in integers(users[0].args[1])]
        else:
            a, b = (int(str(dim)) % rank for dim in users[0].args[1:3])
            order[a], order[b] = order[b], order[a]
        strides = ir.ordered_strides(plain.shape, order)
    view = replace(plain, strides=strides)
    is_dense = ir.same_strides(plain.shape, ir.dense_strides(plain.shape, strides), strides)
    return view if is_dense and is_readable(view, words) else plain
