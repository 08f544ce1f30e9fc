"""Matches the patterns that rewrites look for: reductions, scales and shifts, channel vectors, layers with weights."""

import math
from dataclasses import dataclass

from cuda_agent.core.graph import Arg, Node, Ref
from cuda_agent.playbook.algebra.draft import Draft, NoMatch, aten, is_float, refuse, tensors
from cuda_agent.playbook.algebra.emit import integers

_TRANSPOSED = aten("conv_transpose1d conv_transpose2d.input conv_transpose3d.input")
#: operator of a convolution -> whether it is transposed.
CONVOLUTIONS = {op: op in _TRANSPOSED for op in aten("conv1d conv2d conv3d") | _TRANSPOSED}
_VIEWS = aten(
    "t permute transpose.int view reshape _unsafe_view unsqueeze squeeze squeeze.dim squeeze.dims expand slice.Tensor "
    "select.int detach alias numpy_T flatten.using_ints unflatten.int expand_as"
)
_SUMS = aten("sum.dim_IntList mean.dim sum mean")
_TERMS = aten(" ".join(f"{op}.Tensor {op}.Scalar" for op in ("mul", "div", "add", "sub")))


def is_view(node: Node) -> bool:
    """Returns whether the operator only changes how the same memory is addressed."""
    return node.op in _VIEWS


def order_of(node: Node, rank: int) -> list[int] | None:
    """Returns the order of the operand's dimensions that a permutation or an exchange of two has, None for other
    nodes."""
    if node.op == "aten.permute.default":
        return [dim % rank for dim in integers(node.args[1])]
    if node.op != "aten.transpose.int":
        return None
    order = list(range(rank))
    a, b = (int(str(dim)) % rank for dim in node.args[1:3])
    order[a], order[b] = order[b], order[a]
    return order


@dataclass(frozen=True)
class Reduction:
    """A sum or mean of `x` over `dims` (non-negative, sorted), in x's own type."""

    op: str
    x: Ref
    dims: tuple[int, ...]
    keepdim: bool


def as_reduction(draft: Draft, node: Node | None) -> Reduction:
    """Matches a sum or mean whose result has the operand's type. Raises NoMatch for others."""
    if node is None or node.op not in _SUMS:
        raise NoMatch
    (x,) = tensors(node.args[0])
    meta = draft.meta(x)
    refuse(not is_float(meta.dtype) or draft.meta(node.name).dtype != meta.dtype)
    op = "sum" if node.op.startswith("aten.sum") else "mean"
    rank = len(meta.shape)
    if node.op.endswith("default"):
        return Reduction(op, x, tuple(range(rank)), False)
    dims = integers(node.argument(1, "dim")) if rank else ()
    dims = dims or tuple(range(rank))
    return Reduction(op, x, tuple(sorted(dim % rank for dim in dims)), bool(node.argument(2, "keepdim", False)))


@dataclass(frozen=True)
class Term:
    """`x` op `other`, where `op` is mul, div, add or sub and `other` is a number or a Ref."""

    op: str
    x: Ref
    other: Arg


def as_term(draft: Draft, node: Node | None, *, weights_only: bool = True) -> Term:
    """Matches a product, quotient, sum or difference of a floating-point value and a number or a weight, with alpha 1.
    Without `weights_only` both operands may depend on the input. Raises NoMatch for others."""
    if node is None or node.op not in _TERMS or len(node.args) < 2 or node.argument(2, "alpha", 1) != 1:
        raise NoMatch
    op = node.op.split(".")[1]
    a, b = node.args[0], node.args[1]
    if weights_only and op in ("mul", "add") and draft.is_weight(a) and not draft.is_weight(b):
        a, b = b, a
    (a,) = tensors(a)
    floats = [a, Ref(ref=node.name), *((b,) if isinstance(b, Ref) else ())]
    fits = draft.is_weight(b) or not weights_only if isinstance(b, Ref) else draft.literal(b) is not None
    refuse(not fits or not all(is_float(draft.meta(value).dtype) for value in floats))
    return Term(op, a, b)


def channel_size(shape: tuple[int, ...], rank: int, channel: int) -> int | None:
    """Returns the number of elements of a tensor that extends along dimension `channel` of a tensor of this rank only,
    or None where it extends along another dimension."""
    if len(shape) > rank:
        return None
    aligned = (1,) * (rank - len(shape)) + shape
    return math.prod(shape) if all(size == 1 or index == channel for index, size in enumerate(aligned)) else None


@dataclass(frozen=True)
class Layer:
    """A linear layer or convolution. `channel` is the result's dimension of output channels."""

    node: Node
    x: Ref
    weight: Ref
    bias: Ref | None
    channel: int
    transposed: bool
    groups: int


def as_layer(draft: Draft, node: Node | None) -> Layer | None:
    """Matches a linear layer or convolution."""
    if node is None or len(node.args) < 2:
        return None
    x, weight, bias = node.args[0], node.args[1], node.argument(2, "bias")
    if not isinstance(x, Ref) or not isinstance(weight, Ref) or not (bias is None or isinstance(bias, Ref)):
        return None
    rank = len(draft.meta(node.name).shape)
    if node.op == "aten.linear.default":
        return Layer(node, x, weight, bias, rank - 1, False, 1)
    if node.op == "aten.convolution.default":
        transposed, groups = bool(node.argument(6, "transposed")), node.argument(8, "groups", 1)
    elif node.op in CONVOLUTIONS:
        transposed = CONVOLUTIONS[node.op]
        groups = node.argument(6, "groups", 1)
    else:
        return None
    assert isinstance(groups, int)
    batched = rank == len(draft.meta(weight).shape)
    return Layer(node, x, weight, bias, 1 if batched else 0, transposed, groups)


def with_weights(layer: Layer, weight: Ref, bias: Arg) -> tuple[tuple[Arg, ...], dict[str, Arg]]:
    """Returns the layer's arguments with another weight and bias."""
    args, kwargs = list(layer.node.args), dict(layer.node.kwargs)
    kwargs.pop("bias", None)
    args[1] = weight
    args[2:3] = [bias]
    return tuple(args), kwargs


def _counts_up(draft: Draft, value: Arg, shape: tuple[int, ...]) -> bool:
    """Returns whether the value is 0, 1, 2, … in this shape."""
    if not isinstance(value, Ref) or draft.meta(value).shape != shape:
        return False
    item, node = draft.inputs.get(value.ref), draft.node(value)
    count = math.prod(shape)
    if item is not None:
        return item.values is not None and item.values == tuple(range(count))
    if (
        node is not None
        and node.op in ("aten.unsqueeze.default", "aten.view.default")
        and isinstance(node.args[0], Ref)
    ):
        return _counts_up(draft, node.args[0], (count,))
    return node is not None and (node.op, tuple(node.args)) in (
        ("aten.arange.default", (count,)),
        ("aten.arange.start", (0, count)),
        ("aten.arange.start_step", (0, count)),
        ("aten.arange.start_step", (0, count, 1)),
    )


def is_identity_mask(draft: Draft, value: Arg, size: int) -> bool:
    """Returns whether a bool value [..., size, size] is true exactly on the main diagonal."""
    if not isinstance(value, Ref) or draft.meta(value).shape[-2:] != (size, size):
        return False
    if draft.meta(value).numel != size * size:
        return False
    item, node = draft.inputs.get(value.ref), draft.node(value)
    if item is not None and item.values is not None:
        return all(bool(entry) == (index % (size + 1) == 0) for index, entry in enumerate(item.values))
    if node is not None and node.op in ("aten.view.default", "aten.reshape.default"):
        return is_identity_mask(draft, node.args[0], size)
    if node is None or node.op != "aten.eq.Tensor":
        return False
    a, b = node.args[:2]
    sides = ((a, b), (b, a))
    return any(_counts_up(draft, row, (size,)) and _counts_up(draft, column, (size, 1)) for row, column in sides)
