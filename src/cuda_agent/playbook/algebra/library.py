"""Prepares library calls: biases move to the next kernel where it adds them at no cost, and weights of convolutions are
copied to the layout that channels-last engines read. The copies are derived values."""

from __future__ import annotations

from cuda_agent.core.graph import Node, TensorMeta
from cuda_agent.playbook import ir
from cuda_agent.playbook.algebra.draft import Draft, NoMatch, refuse, same_layout
from cuda_agent.playbook.algebra.emit import binary, reshape
from cuda_agent.playbook.algebra.match import CONVOLUTIONS, as_layer, is_view, with_weights

_LIBRARY = ("linear", "matmul", "bmm", "mm", "addmm", "convolution")


def _fuses(node: Node) -> bool:
    """Returns whether a generated kernel reads this node's operand."""
    name = node.op.removeprefix("aten.").split(".")[0]
    return node.op.startswith("aten.") and not is_view(node) and name not in _LIBRARY and not name.startswith("conv")


def expose_bias(draft: Draft, node: Node) -> str:
    """conv(x, W, b) = conv(x, W) + b before an element-wise kernel or a reduction, and likewise for float32 linear
    layers: exact up to the order of one addition. cuDNN's plain engines and cuBLAS need a separate pass for the bias.
    The bias stays before a lone ReLU, which is part of the call's epilogue, and in half precision, where the product
    would be rounded twice."""
    layer = as_layer(draft, node)
    users = draft.users(node.name)
    if layer is None or layer.bias is None or node.name in draft.outputs or not users:
        raise NoMatch
    meta = draft.meta(node.name)
    linear = node.op == "aten.linear.default"
    refuse(not all(_fuses(user) for user in users) or (linear and meta.dtype != "float32"))
    if (
        len(users) == 1
        and users[0].op in ("aten.relu.default", "aten.gelu.default")
        and (linear or "relu" in users[0].op)
    ):
        raise NoMatch
    args, kwargs = with_weights(layer, layer.weight, None)
    plain = draft.emit(node, node.op, args, meta, kwargs)
    shape = (meta.shape[layer.channel], *[1] * (len(meta.shape) - layer.channel - 1))
    return binary(draft, node, "add", plain, reshape(draft, node, layer.bias, shape)).ref


#: a copy into the strides of its result. It is not an operator of PyTorch.
COPY = "layout.copy"


def channels_last(draft: Draft, node: Node) -> str:
    """conv(x, W, b) = conv(x, W with its channels innermost, b): exact."""
    layer = as_layer(draft, node)
    if layer is None or layer.groups != 1 or not draft.is_weight(layer.weight) or draft.is_weight(layer.x):
        raise NoMatch
    refuse(node.op not in CONVOLUTIONS and node.op != "aten.convolution.default")
    meta = draft.meta(layer.weight)
    wanted = TensorMeta(shape=meta.shape, dtype=meta.dtype, strides=ir.channels_last(meta.shape))
    multiple = 4 if meta.dtype == "float32" else 8
    result = draft.meta(node.name)
    refuse(same_layout(meta, wanted) or any(size % multiple for size in meta.shape[:2]) or layer.channel != 1)
    weight = draft.emit(node, COPY, (layer.weight,), wanted)
    args, kwargs = with_weights(layer, weight, layer.bias)
    return draft.emit(node, node.op, args, result, kwargs).ref
