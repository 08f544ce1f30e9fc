"""Copies weights of convolutions to the layout that channels-last engines read. The copy is a derived value."""

from __future__ import annotations

from cuda_agent.core.graph import Node, TensorMeta
from cuda_agent.playbook import ir
from cuda_agent.playbook.algebra.draft import Draft, Rule, same_layout
from cuda_agent.playbook.algebra.match import CONVOLUTIONS, as_layer, with_weights

#: a copy into the strides of its result. It is not an operator of PyTorch.
COPY = "layout.copy"


def channels_last(draft: Draft, node: Node) -> str | None:
    """conv(x, W, b) = conv(x, W with its channels innermost, b): exact."""
    layer = as_layer(draft, node)
    if layer is None or layer.groups != 1 or not draft.is_weight(layer.weight) or draft.is_weight(layer.x):
        return None
    if node.op not in CONVOLUTIONS and node.op != "aten.convolution.default":
        return None
    meta = draft.meta(layer.weight)
    wanted = TensorMeta(shape=meta.shape, dtype=meta.dtype, strides=ir.channels_last(meta.shape))
    multiple = 4 if meta.dtype == "float32" else 8
    result = draft.meta(node.name)
    if same_layout(meta, wanted) or any(size % multiple for size in meta.shape[:2]) or layer.channel != 1:
        return None
    weight = draft.emit(node, COPY, (layer.weight,), wanted)
    args, kwargs = with_weights(layer, weight, layer.bias)
    return draft.emit(node, node.op, args, result, kwargs).ref


RULES: tuple[Rule, ...] = (channels_last,)
