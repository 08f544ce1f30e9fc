"""Moves biases out of library calls where the next kernel can add them at no cost."""

from __future__ import annotations

from cuda_agent.core.graph import Node
from cuda_agent.playbook.algebra.draft import Draft, Rule
from cuda_agent.playbook.algebra.emit import binary, reshape
from cuda_agent.playbook.algebra.match import as_layer, is_view, with_weights

_LIBRARY = ("linear", "matmul", "bmm", "mm", "addmm", "convolution")


def _fuses(node: Node) -> bool:
    """Returns whether a generated kernel reads this node's operand."""
    name = node.op.removeprefix("aten.").split(".")[0]
    return node.op.startswith("aten.") and not is_view(node) and name not in _LIBRARY and not name.startswith("conv")


def expose_bias(draft: Draft, node: Node) -> str | None:
    """conv(x, W, b) = conv(x, W) + b before an element-wise kernel or a reduction, and likewise for float32 linear
    layers: exact up to the order of one addition. cuDNN's plain engines and cuBLAS need a separate pass for the bias.
    The bias stays before a lone ReLU, which is part of the call's epilogue, and in half precision, where the product
    would be rounded twice."""
    layer = as_layer(draft, node)
    users = draft.users(node.name)
    if layer is None or layer.bias is None or node.name in draft.outputs or not users:
        return None
    meta = draft.meta(node.name)
    linear = node.op == "aten.linear.default"
    if not all(_fuses(user) for user in users) or (linear and meta.dtype != "float32"):
        return None
    if (
        len(users) == 1
        and users[0].op in ("aten.relu.default", "aten.gelu.default")
        and (linear or "relu" in users[0].op)
    ):
        return None
    args, kwargs = with_weights(layer, layer.weight, None)
    plain = draft.emit(node, node.op, args, meta, kwargs)
    shape = (meta.shape[layer.channel], *[1] * (len(meta.shape) - layer.channel - 1))
    return binary(draft, node, "add", plain, reshape(draft, node, layer.bias, shape)).ref


RULES: tuple[Rule, ...] = (expose_bias,)
