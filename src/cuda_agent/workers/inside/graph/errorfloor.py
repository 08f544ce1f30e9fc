"""Determines from a graph the longest sum of an output element, on which the error floor depends."""

from __future__ import annotations

import math

from cuda_agent.core.assets import word_lists
from cuda_agent.core.graph import Arg, Graph, Node, Ref, TensorMeta, base_name
from cuda_agent.workers.inside.graph.operators import products


def largest_reduction(graph: Graph) -> int:
    """Returns K of the longest reduction of one operator: the elements that one output element sums over, at least
    1."""
    metas: dict[str, TensorMeta] = {item.name: item.meta for item in graph.inputs}
    largest = 1
    for node in graph.nodes:
        if node.outputs and node.outputs[0] is not None:
            metas[node.name] = node.outputs[0]
        largest = max(largest, _length(node, metas))
    return largest


def _length(node: Node, metas: dict[str, TensorMeta]) -> int:
    base, lists = base_name(node.op), word_lists(__file__)
    shapes = [metas[arg.ref].shape for arg in node.args if isinstance(arg, Ref) and arg.ref in metas]
    if not shapes:
        return _einsum_length(node, metas) if base == "einsum" else 1
    if base in products():
        return _product_length(base, shapes)
    if base in lists["normalised"]:
        return math.prod([n for n in _list(node.args[1]) if isinstance(n, int)])
    if base in ("group_norm", "instance_norm"):
        groups = node.args[1] if base == "group_norm" and isinstance(node.args[1], int) else shapes[0][1]
        return math.prod(shapes[0][1:]) // max(1, groups)
    if base in lists["along_a_dimension"]:
        dimension = node.args[1] if len(node.args) > 1 and isinstance(node.args[1], int) else -1
        return shapes[0][dimension] if shapes[0] else 1
    if base in lists["to_fewer"]:
        outputs = [meta.numel for meta in node.outputs if meta is not None]
        return max(1, math.prod(shapes[0]) // max(1, outputs[0] if outputs else 1))
    if base == "scaled_dot_product_attention":
        return max(shapes[0][-1], shapes[1][-2])
    if base in lists["recurrent"]:
        return shapes[0][-1]
    return 1


def _product_length(base: str, shapes: list[tuple[int, ...]]) -> int:
    if base.startswith("conv_transpose"):
        return shapes[1][0] * math.prod(shapes[1][2:])
    if base.startswith("conv"):
        return math.prod(shapes[1][1:])
    if base in ("addmm", "baddbmm"):
        return shapes[1][-1]
    return shapes[0][-1] if shapes[0] else 1


def _einsum_length(node: Node, metas: dict[str, TensorMeta]) -> int:
    """Returns the product of the sizes of the summed letters; with an ellipsis in the equation, of the named
    letters."""
    equation = node.args[0]
    operands = [metas[arg.ref].shape for arg in _list(node.args[1]) if isinstance(arg, Ref) and arg.ref in metas]
    if not isinstance(equation, str) or "->" not in equation or "." in equation:
        return max((size for shape in operands for size in shape), default=1)
    left, right = equation.replace(" ", "").split("->")
    sizes = {letter: size for term, shape in zip(left.split(","), operands, strict=False)
             for letter, size in zip(term, shape, strict=False)}  # fmt: skip
    return math.prod([size for letter, size in sizes.items() if letter not in right])


def _list(arg: Arg) -> list[Arg]:
    return arg if isinstance(arg, list) else []
