"""Prepares library calls: biases move to the next kernel where it adds them at no cost, weights of convolutions are
copied to the layout that channels-last engines read, and linear layers of one input become one. The copies are derived
values."""

from cuda_agent.core.graph import Arg, Node, Ref, TensorMeta
from cuda_agent.playbook import ir
from cuda_agent.playbook.algebra.draft import Draft, NoMatch, refuse, same_layout, tensors
from cuda_agent.playbook.algebra.emit import binary, full, linear, reshape
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


#: rows of weights that lie together begin at multiples of 16 bytes.
_ROWS = 8


def _siblings(draft: Draft, node: Node) -> list[Node]:
    """Returns the linear layers in half precision of this one's input, itself first. Raises NoMatch where it isn't one,
    or not the first."""
    refuse(node.op != "aten.linear.default" or draft.meta(node.name).dtype not in ir.HALF_DTYPES)
    x, _ = tensors(*node.args[:2])
    refuse(draft.is_weight(x))
    place = {name: index for index, name in enumerate(draft.order)}

    def is_sibling(other: Node) -> bool:
        if other.op != node.op or other.args[0] != x or other.name in draft.outputs:
            return False
        weights = [arg for arg in other.args[1:] if arg is not None]
        known = all(
            isinstance(w, Ref) and draft.is_weight(w) and place.get(w.ref, -1) < place[node.name] for w in weights
        )
        rows = draft.meta(other.name).shape[-1]
        activated = [u.op for u in draft.users(other.name)] in (["aten.relu.default"], ["aten.gelu.default"])
        return known and rows % _ROWS == 0 and not activated

    found = sorted((user for user in draft.users(x.ref) if is_sibling(user)), key=lambda user: place[user.name])
    refuse(len(found) < 2 or found[0].name != node.name)
    return found


def _beside(draft: Draft, layers: list[Node]) -> str:
    """Replaces linear layers of one input by slices of one. Returns the first layer's slice."""
    at, x = layers[0], layers[0].args[0]
    weights = [layer.args[1] for layer in layers]
    sizes = [draft.meta(layer.name).shape[-1] for layer in layers]
    dtype = draft.meta(at.name).dtype

    def joined(parts: list[Arg], *inner: int) -> Ref:
        return draft.emit(at, "aten.cat.default", (parts, 0), ir.contiguous_meta((sum(sizes), *inner), dtype))

    weight = joined(weights, draft.meta(x).shape[-1])
    biases = [layer.args[2] if len(layer.args) > 2 else None for layer in layers]
    bias: Arg = None
    if any(item is not None for item in biases):
        zeros = [full(draft, at, (n,), 0.0, dtype) if b is None else b for b, n in zip(biases, sizes, strict=True)]
        bias = joined(list(zeros))
    assert isinstance(x, Ref)
    wide = linear(draft, at, x, weight, bias)
    meta, start, made = draft.meta(wide), 0, []
    for size in sizes:
        view = TensorMeta(shape=(*meta.shape[:-1], size), dtype=dtype, strides=meta.strides)
        made.append(draft.emit(at, "aten.slice.Tensor", (wide, len(meta.shape) - 1, start, start + size, 1), view).ref)
        start += size
    for layer, part in zip(layers[1:], made[1:], strict=True):
        draft.replace(layer.name, part)
    return made[0]


def projections_side_by_side(draft: Draft, node: Node) -> str:
    """(xAᵀ + a, xBᵀ + b) are slices of x(A; B)ᵀ + (a; b): exact. Small products, such as those of shared keys and
    values beside that of the queries, don't fill a GPU. Layers that an element-wise kernel reads stay apart, since the
    kernel may join its product."""
    layers = [layer for layer in _siblings(draft, node) if all(is_view(user) for user in draft.users(layer.name))]
    refuse(len(layers) < 2 or layers[0].name != node.name)
    return _beside(draft, layers)


def linears_side_by_side(draft: Draft, node: Node) -> str:
    """(xAᵀ + a, xBᵀ + b) are slices of x(A; B)ᵀ + (a; b): exact."""
    return _beside(draft, _siblings(draft, node))
