"""Makes matrix products cheaper: products with diagonals, products that are only summed, and chains of products."""

import math

from cuda_agent.core.graph import Arg, Node, Ref
from cuda_agent.playbook.algebra.draft import Draft, NoMatch, aten, is_float, refuse, tensors
from cuda_agent.playbook.algebra.emit import binary, cast, linear, matmul, permute, reduce, reshape, transpose, wide
from cuda_agent.playbook.algebra.match import Reduction, as_reduction, as_term, is_identity_mask

_BATCHED = aten("matmul bmm")
_LINEAR = aten("linear")
_PRODUCTS = _BATCHED | _LINEAR
_SUMS = aten("add.Tensor sub.Tensor")


def dot_rows(draft: Draft, at: Node, x: Ref, vector: Ref, *, keepdim: bool) -> Ref:
    """Emits x [..., K] · vector (broadcast to x) summed over the last dimension, in float32 at least."""
    product = binary(draft, at, "mul", wide(draft, at, x), wide(draft, at, vector))
    return reduce(draft, at, "sum", product, (len(draft.meta(product).shape) - 1,), keepdim)


def _diagonal(draft: Draft, at: Node, value: Arg) -> Ref | None:
    """Returns v where the value is diag(v), with the last dimension of v on the main diagonal."""
    node = draft.node(value)
    if node is None or node.op not in ("aten.diag.default", "aten.diag_embed.default"):
        return _masked_diagonal(draft, at, value)
    v = node.args[0]
    if not isinstance(v, Ref) or any(node.argument(1 + i, key, 0) for i, key in enumerate(("offset", "diagonal"))):
        return None
    if node.op == "aten.diag.default" and (len(draft.meta(v).shape) != 1 or "diagonal" in node.kwargs):
        return None
    return v if node.op == "aten.diag.default" or len(node.args) + len(node.kwargs) <= 1 else None


def _masked_diagonal(draft: Draft, at: Node, value: Arg) -> Ref | None:
    """Returns v where the value is where(identity mask, v as a row, 0), the decomposition of diag and diag_embed."""
    node = draft.node(value)
    if node is None or node.op not in ("aten.where.ScalarOther", "aten.where.self") or draft.literal(node.args[2]) != 0:
        return None
    row, shape = node.args[1], draft.meta(node.name).shape
    if not isinstance(row, Ref) or draft.meta(row).shape != (*shape[:-2], 1, shape[-1]):
        return None
    if not is_identity_mask(draft, node.args[0], shape[-1]):
        return None
    return reshape(draft, at, row, (*shape[:-2], shape[-1]))


def _through_transpose(draft: Draft, value: Ref) -> Ref:
    node = draft.node(value)
    if node is not None and node.op == "aten.t.default" and isinstance(node.args[0], Ref):
        return node.args[0]
    return value


def diagonal_product(draft: Draft, node: Node) -> str:
    """diag(v)·B scales the rows of B by v, and A·diag(v) scales the columns of A: exact, except that the NaN of 0·inf
    in the dense product doesn't arise."""
    refuse(node.op not in _PRODUCTS)
    a, b = tensors(*node.args[:2])
    refuse(node.argument(2, "bias") is not None)
    is_linear = node.op == "aten.linear.default"
    left = _diagonal(draft, node, a)
    right = _diagonal(draft, node, _through_transpose(draft, b) if is_linear else b)
    if left is not None and (not is_linear or len(draft.meta(left).shape) == 1):
        inner = _through_transpose(draft, b)
        other = b if not is_linear else (inner if inner != b else transpose(draft, node, b))
        return binary(draft, node, "mul", other, reshape(draft, node, left, (*draft.meta(left).shape, 1))).ref
    if right is not None:
        shape = draft.meta(right).shape
        row = right if len(shape) == 1 else reshape(draft, node, right, (*shape[:-1], 1, shape[-1]))
        return binary(draft, node, "mul", a, row).ref
    raise NoMatch


def matrix_vector(draft: Draft, node: Node) -> str:
    """mv(A, v), A·v and dot(u, v) with a vector v are sums of products along the last dimension. Only the order of
    summation changes."""
    refuse(node.op not in ("aten.mv.default", "aten.dot.default", "aten.matmul.default"))
    a, v = tensors(*node.args[:2])
    refuse(not is_float(draft.meta(a).dtype) or len(draft.meta(v).shape) != 1)
    total = dot_rows(draft, node, a, v, keepdim=False)
    return cast(draft, node, total, draft.meta(node.name).dtype).ref


def narrow_linear(draft: Draft, node: Node) -> str:
    """A linear layer with one output is a dot product of each row with the weight: sum(x·w, -1) + b. Only the order of
    summation changes."""
    refuse(node.op != "aten.linear.default")
    (x, weight), bias = tensors(*node.args[:2]), node.argument(2, "bias")
    outputs, inner = draft.meta(weight).shape
    refuse(outputs != 1 or inner == 1)
    total = dot_rows(draft, node, x, reshape(draft, node, weight, (inner,)), keepdim=True)
    if isinstance(bias, Ref):
        total = binary(draft, node, "add", total, bias)
    return cast(draft, node, total, draft.meta(node.name).dtype).ref


def batched_vectors(draft: Draft, node: Node) -> str:
    """A batch of matrices times one vector each, [..., M, K]·[..., K, 1], is a sum of products along each row. So are
    vectors times matrices with contiguous columns. Each element is read once, so a matrix product has nothing to reuse.
    An index that selects the matrices, such as a router's, can be applied where they are read. Only the order of
    summation changes."""
    refuse(node.op not in _BATCHED)
    a, b = tensors(*node.args[:2])
    left, right, meta = draft.meta(a), draft.meta(b), draft.meta(node.name)
    refuse(not is_float(left.dtype) or min(len(left.shape), len(right.shape)) < 3 or left.shape[-1] == 1)
    batch = meta.shape[:-2]
    if right.shape[-1] == 1 and left.shape[:-2] == batch:
        row = reshape(draft, node, b, (*right.shape[:-2], 1, right.shape[-2]))
        total = dot_rows(draft, node, a, row, keepdim=True)
    elif left.shape[-2] == 1 and right.strides[-2] == 1 and right.shape[:-2] == batch:
        rank = len(right.shape)
        columns = permute(draft, node, b, (*range(rank - 2), rank - 1, rank - 2))
        total = dot_rows(draft, node, columns, a, keepdim=False)
        total = reshape(draft, node, total, meta.shape)
    else:
        raise NoMatch
    return cast(draft, node, total, meta.dtype).ref


def _finish(draft: Draft, at: Node, value: Ref, found: Reduction, dims: tuple[int, ...]) -> str:
    """Reduces the remaining dimensions, then restores the shape and type of the original result. `value` still has all
    dimensions; those reduced already have size 1."""
    if dims:
        value = reduce(draft, at, found.op, value, dims, True)
    value = cast(draft, at, value, draft.meta(at.name).dtype)
    return reshape(draft, at, value, draft.meta(at.name).shape).ref


def _reduced_product(draft: Draft, node: Node, ops: frozenset[str]) -> tuple[Reduction, Node]:
    """Returns a reduction and the product that it reduces and that nothing else reads. Raises NoMatch."""
    found = as_reduction(draft, node)
    source = draft.node(found.x)
    if source is None or draft.uses(found.x.ref) != 1 or source.op not in ops:
        raise NoMatch
    return found, source


def reduced_columns(draft: Draft, node: Node) -> str:
    """The sum of xWᵀ + b over its columns is x·(Σₙ Wₙ) + Σₙ bₙ, the mean is x·(mean W) + mean b. This is a
    matrix–vector product of O(MK) instead of O(MNK). Sums are in float32 at least. Only the order of summation
    changes."""
    found, source = _reduced_product(draft, node, _LINEAR)
    rank = len(draft.meta(found.x).shape)
    x, weight = tensors(*source.args[:2])
    refuse(rank - 1 not in found.dims)
    vector = reduce(draft, node, found.op, wide(draft, node, weight), (0,))
    total = dot_rows(draft, node, x, vector, keepdim=True)
    bias = source.argument(2, "bias")
    if isinstance(bias, Ref):
        total = binary(draft, node, "add", total, reduce(draft, node, found.op, wide(draft, node, bias), (0,)))
    return _finish(draft, node, total, found, tuple(dim for dim in found.dims if dim != rank - 1))


def reduced_rows(draft: Draft, node: Node) -> str:
    """The sum over T rows (tokens, batch) of xWᵀ + b is (Σ x)Wᵀ + T·b, the mean is (mean x)Wᵀ + b. The product shrinks
    by a factor of T. Only the order of summation changes."""
    found, source = _reduced_product(draft, node, _LINEAR)
    shape = draft.meta(found.x).shape
    (x, weight), bias = tensors(*source.args[:2]), source.argument(2, "bias")
    rows = math.prod(shape[dim] for dim in found.dims)
    refuse(len(shape) - 1 in found.dims or rows == 1)
    if isinstance(bias, Ref) and found.op == "sum":
        refuse(not draft.is_weight(bias))
        times = binary(draft, node, "mul", wide(draft, node, bias), float(rows))
        bias = cast(draft, node, times, draft.meta(bias).dtype)
    pooled = reduce(draft, node, found.op, x, found.dims, True)
    product = linear(draft, node, pooled, weight, bias)
    return _finish(draft, node, product, found, ())


def reduced_batched(draft: Draft, node: Node) -> str:
    """Over columns Σₙ (A·B)ₙ = A·(Σₙ Bₙ), over rows Σₘ (A·B)ₘ = (Σₘ Aₘ)·B. Likewise for means. Only the order of
    summation changes."""
    found, source = _reduced_product(draft, node, _BATCHED)
    a, b = tensors(*source.args[:2])
    rank = len(draft.meta(found.x).shape)
    refuse(min(len(draft.meta(a).shape), len(draft.meta(b).shape)) < 2)
    if rank - 1 in found.dims:
        right = draft.meta(b).shape
        vector = reduce(draft, node, found.op, wide(draft, node, b), (len(right) - 1,))
        row = reshape(draft, node, vector, (*right[:-2], 1, right[-2]))
        total = dot_rows(draft, node, a, row, keepdim=True)
        return _finish(draft, node, total, found, tuple(dim for dim in found.dims if dim != rank - 1))
    if rank - 2 in found.dims and draft.meta(found.x).shape[-2] > 1:
        pooled = reduce(draft, node, found.op, a, (len(draft.meta(a).shape) - 2,), True)
        product = matmul(draft, node, pooled, b)
        return _finish(draft, node, product, found, tuple(dim for dim in found.dims if dim != rank - 2))
    raise NoMatch


def split_reduction(draft: Draft, node: Node) -> str:
    """A sum or mean of P ± z (equal shapes) or of P·c is applied to each part, where P is a product that nothing else
    reads. The product can then shrink. Only the order of summation changes."""
    found = as_reduction(draft, node)
    term = as_term(draft, draft.node(found.x), weights_only=False)
    refuse(draft.uses(found.x.ref) != 1 or draft.meta(found.x).dtype != draft.meta(term.x).dtype)
    if term.op in ("mul", "div") and not isinstance(term.other, Ref):
        inner = draft.node(term.x)
        if inner is None or inner.op not in (_PRODUCTS | _SUMS) or draft.uses(inner.name) != 1:
            raise NoMatch
        total = reduce(draft, node, found.op, term.x, found.dims, found.keepdim)
        return binary(draft, node, term.op, total, term.other).ref
    if term.op not in ("add", "sub") or not isinstance(term.other, Ref):
        raise NoMatch
    shape = draft.meta(found.x).shape
    sides = [draft.node(term.x), draft.node(term.other)]
    shrinks = [side is not None and side.op in _PRODUCTS and draft.uses(side.name) == 1 for side in sides]
    refuse(not any(shrinks) or draft.meta(term.x).shape != shape or draft.meta(term.other).shape != shape)
    refuse(draft.meta(term.x).dtype != draft.meta(term.other).dtype)
    first = reduce(draft, node, found.op, term.x, found.dims, found.keepdim)
    second = reduce(draft, node, found.op, term.other, found.dims, found.keepdim)
    return binary(draft, node, term.op, first, second).ref


def merge_linears(draft: Draft, node: Node) -> str:
    """(xAᵀ + a)Bᵀ + b = x(BA)ᵀ + (Ba + b), where it saves operations. The product of weights is computed once, when
    they are loaded, with the rounding of one matrix product in float32."""
    inner = draft.node(node.args[0]) if node.op == "aten.linear.default" else None
    if inner is None or inner.op != "aten.linear.default" or draft.uses(inner.name) != 1:
        raise NoMatch
    x, first, second = tensors(*inner.args[:2], node.args[1])
    biases = (inner.argument(2, "bias"), node.argument(2, "bias"))
    refuse(not all(bias is None or draft.is_weight(bias) for bias in (first, second, *biases)))
    middle, width = draft.meta(first).shape
    out = draft.meta(second).shape[0]
    refuse(width * out >= middle * (width + out))
    dtype = draft.meta(node.name).dtype
    left, right = wide(draft, node, second), wide(draft, node, first)
    weight = linear(draft, node, left, transpose(draft, node, right), None)
    bias: Ref | None = None
    if isinstance(biases[0], Ref):
        bias = dot_rows(draft, node, left, biases[0], keepdim=False)
    if isinstance(biases[1], Ref):
        bias = biases[1] if bias is None else binary(draft, node, "add", bias, wide(draft, node, biases[1]))
    rounded = cast(draft, node, bias, dtype) if bias is not None else None
    return linear(draft, node, x, cast(draft, node, weight, dtype), rounded).ref
