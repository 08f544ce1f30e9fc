"""Rewrites that remove operators without effect and bring equal computations into one form."""

import math

from cuda_agent.core.graph import Arg, Node, Ref
from cuda_agent.playbook.algebra.draft import Draft, NoMatch, aten, is_float, refuse, same_layout, tensors
from cuda_agent.playbook.algebra.emit import binary, integers, linear, matmul, permute, reduce, reshape, transpose
from cuda_agent.playbook.algebra.match import as_reduction, as_term
from cuda_agent.playbook.ir import contiguous_meta

_COPIES = aten("clone contiguous detach alias lift_fresh_copy lift_fresh detach_")
_CASTS = aten("_to_copy to.dtype to.dtype_layout to.other type_as")
_BINARY = aten("mul.Tensor add.Tensor div.Tensor sub.Tensor")
_RESHAPES = aten("view reshape _unsafe_view")


def drop_copy(draft: Draft, node: Node) -> str:
    """clone(x) = contiguous(x) = dropout(x, training=False) = x, x.to(its own type) = x: exact. A copy of an input
    that the graph returns stays, since a result must not share memory with an input."""
    source = node.args[0] if node.args else None
    if not isinstance(source, Ref) or len(node.outputs) != 1 or node.outputs[0] is None:
        raise NoMatch
    before, after = draft.meta(source), node.outputs[0]
    same = before.shape == after.shape and before.dtype == after.dtype and same_layout(before, after)
    identity = node.op in _COPIES or node.op in _CASTS or node.op in _RESHAPES or node.op == "aten.expand.default"
    if node.op in ("aten.dropout.default", "aten.feature_dropout.default", "aten.alpha_dropout.default"):
        identity = node.argument(2, "train") is False
    refuse(not identity or not same or (node.name in draft.outputs and source.ref in draft.inputs))
    return source.ref


def constant_operand(draft: Draft, node: Node) -> str:
    """x ∘ c with a one-element constant tensor c is x ∘ number, for mul, add, div, sub: exact, since the constant has
    been rounded to its type already. The result must have x's type."""
    refuse(len(node.args) < 2 or node.op not in _BINARY)
    a, b = node.args[0], node.args[1]
    if node.op in ("aten.mul.Tensor", "aten.add.Tensor") and draft.literal(a) is not None and not node.kwargs:
        a, b = b, a
    value = draft.literal(b)
    meta = node.outputs[0]
    if not isinstance(a, Ref) or not isinstance(b, Ref) or value is None or meta is None or not math.isfinite(value):
        raise NoMatch
    refuse(draft.meta(a).dtype != meta.dtype or draft.meta(a).shape != meta.shape or not is_float(meta.dtype))
    return draft.emit(node, node.op, (a, value), meta, dict(node.kwargs)).ref


def merge_scalars(draft: Draft, node: Node) -> str:
    """(x·a)·b = x·(ab), (x/a)·b = x·(b/a), (x + a) + b = x + (a + b), and the like; x·1 = x/1 = x + 0 = x. This saves
    one rounding. The merged number is computed in float64 and must neither overflow nor vanish."""
    outer = as_term(draft, node)
    refuse(draft.meta(outer.x).dtype != draft.meta(node.name).dtype)
    value = draft.literal(outer.other)
    if value is None or isinstance(outer.other, Ref):
        raise NoMatch
    if value == (1 if outer.op in ("mul", "div") else 0) and node.name not in draft.outputs:
        return outer.x.ref
    inner = as_term(draft, draft.node(outer.x))
    if isinstance(inner.other, Ref) or draft.uses(outer.x.ref) != 1:
        raise NoMatch
    first = draft.literal(inner.other)
    if first is None or draft.meta(inner.x).dtype != draft.meta(outer.x).dtype:
        raise NoMatch
    if outer.op in ("mul", "div") and inner.op in ("mul", "div"):
        factor = (first if inner.op == "mul" else 1 / first if first else math.inf) * 1.0
        merged = factor * value if outer.op == "mul" else factor / value if value else math.inf
        refuse(not 1e-30 < abs(merged) < 1e30)
        return binary(draft, node, "mul", inner.x, merged).ref
    if outer.op in ("add", "sub") and inner.op in ("add", "sub"):
        total = (first if inner.op == "add" else -first) + (value if outer.op == "add" else -value)
        return binary(draft, node, "add", inner.x, float(total)).ref
    raise NoMatch


def single_element_reduction(draft: Draft, node: Node) -> str:
    """A sum, mean, product, maximum, minimum or log-sum-exp over dimensions of size 1 is its operand, reshaped:
    exact."""
    name = node.op.removeprefix("aten.").split(".")[0]
    if name not in ("sum", "mean", "prod", "amax", "amin", "logsumexp") or not isinstance(node.args[0], Ref):
        raise NoMatch
    meta, source = node.outputs[0], draft.meta(node.args[0])
    if meta is None or meta.dtype != source.dtype or meta.numel != source.numel or node.name in draft.outputs:
        raise NoMatch
    dims = integers(node.argument(1, "dim")) if not node.op.endswith("sum.default") else ()
    dims = dims if dims and source.shape else tuple(range(len(source.shape)))
    refuse(any(source.shape[dim] != 1 for dim in dims))
    return reshape(draft, node, node.args[0], meta.shape).ref


def merge_reductions(draft: Draft, node: Node) -> str:
    """The sum over b of (sum over a of x) is the sum over a and b of x. Likewise for means, whose groups have equal
    sizes. Only the order of summation changes."""
    outer = as_reduction(draft, node)
    inner = as_reduction(draft, draft.node(outer.x))
    refuse(inner.op != outer.op or draft.uses(outer.x.ref) != 1)
    rank = len(draft.meta(inner.x).shape)
    kept = list(range(rank)) if inner.keepdim else [dim for dim in range(rank) if dim not in inner.dims]
    dims = sorted({*inner.dims, *(kept[dim] for dim in outer.dims)})
    merged = reduce(draft, node, inner.op, inner.x, dims)
    return reshape(draft, node, merged, draft.meta(node.name).shape).ref


def double_transpose(draft: Draft, node: Node) -> str:
    """(xᵀ)ᵀ = x: exact."""
    inner = _matrix_transposed(draft, node)
    source = None if inner is None else _matrix_transposed(draft, draft.node(inner))
    if source is None or node.name in draft.outputs:
        raise NoMatch
    return source.ref


def merge_reshapes(draft: Draft, node: Node) -> str:
    """reshape(reshape(x)) = reshape(x): exact."""
    inner = draft.node(node.args[0]) if node.args else None
    if node.op not in _RESHAPES or inner is None or inner.op not in _RESHAPES or not isinstance(inner.args[0], Ref):
        raise NoMatch
    meta = node.outputs[0]
    assert meta is not None
    return draft.emit(node, "aten.reshape.default", (inner.args[0], list(meta.shape)), meta).ref


def _matrix_transposed(draft: Draft, node: Node | None) -> Ref | None:
    """Returns x where the node is the transpose of a matrix x."""
    if node is None or not node.args or not isinstance(node.args[0], Ref) or len(draft.meta(node.args[0]).shape) != 2:
        return None
    if node.op in ("aten.t.default", "aten.numpy_T.default"):
        return node.args[0]
    if node.op == "aten.permute.default" and [dim % 2 for dim in integers(node.args[1])] == [1, 0]:
        return node.args[0]
    if node.op == "aten.transpose.int" and {int(str(node.args[1])) % 2, int(str(node.args[2])) % 2} == {0, 1}:
        return node.args[0]
    return None


def product_to_linear(draft: Draft, node: Node) -> str:
    """x·B = linear(x, Bᵀ) and addmm(c, x, B) = linear(x, Bᵀ, c) for a matrix B: exact. A c that isn't a vector is added
    afterwards."""
    bias = None
    if node.op == "aten.addmm.default":
        bias, x, right = node.args[:3]
        refuse(any(node.argument(3 + i, name, 1) != 1 for i, name in enumerate(("beta", "alpha"))))
    elif node.op in ("aten.mm.default", "aten.matmul.default"):
        x, right = node.args[:2]
    else:
        raise NoMatch
    x, right = tensors(x, right)
    refuse(not is_float(draft.meta(x).dtype) or len(draft.meta(right).shape) != 2 or len(draft.meta(x).shape) < 2)
    weight = _matrix_transposed(draft, draft.node(right)) or transpose(draft, node, right)
    if isinstance(bias, Ref) and draft.meta(bias).shape != draft.meta(weight).shape[:1]:
        return binary(draft, node, "add", linear(draft, node, x, weight, None), bias).ref
    return linear(draft, node, x, weight, bias).ref


def added_product(draft: Draft, node: Node) -> str:
    """addmm, baddbmm, addmv and addbmm of (c, A, B) are beta·c + alpha·A·B: exact up to one rounding. addbmm also sums
    over the batch."""
    name = node.op.removeprefix("aten.").removesuffix(".default")
    refuse(name not in ("addmm", "baddbmm", "addmv", "addbmm"))
    factors = [node.argument(3 + place, word, 1) for place, word in enumerate(("beta", "alpha"))]
    beta, alpha = factors
    refuse(name == "addmm" and factors == [1, 1])
    c, a, b = tensors(*node.args[:3])
    if not is_float(draft.meta(a).dtype) or not all(isinstance(factor, int | float) for factor in factors):
        raise NoMatch
    if name == "addmv":
        b = reshape(draft, node, b, (*draft.meta(b).shape, 1))
    product = _product_over_batch(draft, node, a, b) if name == "addbmm" else matmul(draft, node, a, b)
    if name == "addmv":
        product = reshape(draft, node, product, draft.meta(product).shape[:-1])
    product = product if alpha == 1 else binary(draft, node, "mul", product, alpha)
    if beta == 0:
        # With beta 0, PyTorch ignores even NaN in c.
        refuse(draft.meta(product).shape != draft.meta(node.name).shape)
        return product.ref
    return binary(draft, node, "add", product, c if beta == 1 else binary(draft, node, "mul", c, beta)).ref


def constant_places(draft: Draft, node: Node) -> str:
    """x[i₀, i₁, …] along one dimension with constant, equally spaced indices is a slice, reversed or not. With all
    indices in cyclic order it is a rotation of x. Exact."""
    found = _picked(draft, node)
    if found is None or node.name in draft.outputs:
        raise NoMatch
    x, dim, places = found
    size, meta = draft.meta(x).shape[dim], node.outputs[0]
    places = tuple(place + size if place < 0 else place for place in places)
    first, last = places[0], places[-1]
    apart = places[1] - first if len(places) > 1 else 1
    if meta is None or not all(0 <= place < size for place in places):
        raise NoMatch
    if apart and places == tuple(range(first, last + (1 if apart > 0 else -1), apart)):
        args = (x, dim, min(first, last), max(first, last) + 1, abs(apart))
        part = draft.emit(node, "aten.slice.Tensor", args, contiguous_meta(meta.shape, meta.dtype))
        return part.ref if apart > 0 else _moved(draft, node, "aten.flip.default", (part, [dim]))
    if places == tuple((first + at) % size for at in range(size)):
        return _moved(draft, node, "aten.roll.default", (x, [-first], [dim]))
    raise NoMatch


def _moved(draft: Draft, node: Node, op: str, args: tuple[Arg, ...]) -> str:
    meta = draft.meta(node.name)
    return draft.emit(node, op, args, contiguous_meta(meta.shape, meta.dtype)).ref


def _picked(draft: Draft, node: Node) -> tuple[Ref, int, tuple[int, ...]] | None:
    """Returns the tensor, the dimension and the constant indices of an index_select, or of an index along one
    dimension."""
    if node.op == "aten.index_select.default":
        x, dim, index = node.args[:3]
    elif node.op == "aten.index.Tensor" and isinstance(node.args[1], list | tuple):
        given = [at for at, one in enumerate(node.args[1]) if one is not None]
        if len(given) != 1:
            return None
        x, dim, index = node.args[0], given[0], node.args[1][given[0]]
    else:
        return None
    known = draft.inputs.get(index.ref) if isinstance(index, Ref) else None
    if known is None or not known.values or len(known.meta.shape) != 1 or known.meta.dtype not in ("int64", "int32"):
        return None
    if not isinstance(x, Ref) or not isinstance(dim, int) or not draft.meta(x).shape:
        return None
    return x, dim % len(draft.meta(x).shape), tuple(int(value) for value in known.values)


def _product_over_batch(draft: Draft, node: Node, a: Ref, b: Ref) -> Ref:
    """Emits Σ A_i·B_i as a batched product and a sum. It is one product of longer rows instead where the batched result
    is larger than A or would be rounded to 16 bits, or where A needs no copy for that."""
    count, rows, inner = draft.meta(a).shape
    columns, (step, down, _) = draft.meta(b).shape[-1], draft.meta(a).strides
    is_copied = min(count, rows, inner) > 1 and (step, down) != (inner, count * inner)
    if is_copied and columns <= inner and draft.meta(a).dtype in ("float32", "float64"):
        return reduce(draft, node, "sum", matmul(draft, node, a, b), (0,))
    a = reshape(draft, node, permute(draft, node, a, (1, 0, 2)), (rows, count * inner))
    return matmul(draft, node, a, reshape(draft, node, b, (count * inner, columns)))
