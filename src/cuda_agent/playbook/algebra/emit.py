"""Emits ATen operators with the shape and type of their results."""

from collections.abc import Sequence

from cuda_agent.core.graph import Arg, DtypeArg, Node, Ref, TensorMeta
from cuda_agent.playbook.algebra.draft import Draft
from cuda_agent.playbook.ir import HALF_DTYPES, broadcast, contiguous_meta, promote


def integers(arg: Arg) -> tuple[int, ...]:
    """Returns a list of integers. A single one counts as a list of one, None as an empty list."""
    if arg is None:
        return ()
    if isinstance(arg, int):
        return (arg,)
    assert isinstance(arg, list | tuple)
    return tuple(int(item) for item in arg if isinstance(item, int))


def promoted(draft: Draft, a: Ref, b: Arg) -> str:
    """Returns torch's result type of two floating-point operands. A number or 0-dimensional tensor doesn't promote."""
    first = draft.meta(a)
    if not isinstance(b, Ref):
        return first.dtype
    second = draft.meta(b)
    if bool(first.shape) != bool(second.shape):
        return first.dtype if first.shape else second.dtype
    return promote(first.dtype, second.dtype)


def binary(draft: Draft, at: Node, op: str, a: Ref, b: Arg) -> Ref:
    """Emits add, sub, mul or div. `b` may be a number."""
    other = draft.meta(b).shape if isinstance(b, Ref) else ()
    meta = contiguous_meta(broadcast(draft.meta(a).shape, other), promoted(draft, a, b))
    return draft.emit(at, f"aten.{op}.Tensor", (a, b), meta)


def unary(draft: Draft, at: Node, op: str, a: Ref) -> Ref:
    meta = draft.meta(a)
    return draft.emit(at, f"aten.{op}.default", (a,), contiguous_meta(meta.shape, meta.dtype))


def cast(draft: Draft, at: Node, a: Ref, dtype: str) -> Ref:
    """Emits a cast, or returns the value where it has the type already."""
    meta = draft.meta(a)
    if meta.dtype == dtype:
        return a
    kwargs: dict[str, Arg] = {"dtype": DtypeArg(dtype=dtype)}
    return draft.emit(at, "aten._to_copy.default", (a,), contiguous_meta(meta.shape, dtype), kwargs)


def wide(draft: Draft, at: Node, a: Ref) -> Ref:
    """Casts half-precision values to float32. Derived weights are so rounded once, at the end."""
    return cast(draft, at, a, "float32") if draft.meta(a).dtype in HALF_DTYPES else a


def reshape(draft: Draft, at: Node, a: Ref, shape: Sequence[int]) -> Ref:
    meta = draft.meta(a)
    if meta.shape == tuple(shape):
        return a
    return draft.emit(at, "aten.reshape.default", (a, list(shape)), contiguous_meta(shape, meta.dtype))


def transpose(draft: Draft, at: Node, a: Ref) -> Ref:
    """Emits the transpose of a matrix, a view."""
    meta = draft.meta(a)
    rows, columns = meta.shape
    view = meta.model_copy(update={"shape": (columns, rows), "strides": meta.strides[::-1]})
    return draft.emit(at, "aten.t.default", (a,), view)


def permute(draft: Draft, at: Node, a: Ref, order: Sequence[int]) -> Ref:
    """Emits a permutation of the dimensions, a view."""
    if tuple(order) == tuple(range(len(order))):
        return a
    meta = draft.meta(a)
    view = TensorMeta(
        shape=tuple(meta.shape[i] for i in order), dtype=meta.dtype, strides=tuple(meta.strides[i] for i in order)
    )
    return draft.emit(at, "aten.permute.default", (a, list(order)), view)


def reduce(draft: Draft, at: Node, op: str, a: Ref, dims: Sequence[int], keepdim: bool = False) -> Ref:
    """Emits a sum or mean over dimensions."""
    meta = draft.meta(a)
    full = "aten.sum.dim_IntList" if op == "sum" else "aten.mean.dim"
    shape = [1 if dim in dims else size for dim, size in enumerate(meta.shape) if keepdim or dim not in dims]
    return draft.emit(at, full, (a, list(dims), keepdim), contiguous_meta(shape, meta.dtype))


def linear(draft: Draft, at: Node, x: Ref, weight: Ref, bias: Arg) -> Ref:
    """Emits x·weightᵀ + bias: x [..., K], weight [N, K], bias [N] or None -> [..., N]."""
    meta = draft.meta(x)
    result = contiguous_meta((*meta.shape[:-1], draft.meta(weight).shape[0]), meta.dtype)
    args: tuple[Arg, ...] = (x, weight) if bias is None else (x, weight, bias)
    return draft.emit(at, "aten.linear.default", args, result)


def matmul(draft: Draft, at: Node, a: Ref, b: Ref) -> Ref:
    """Emits the product of operands of two or more dimensions."""
    left, right = draft.meta(a), draft.meta(b)
    batch = broadcast(left.shape[:-2], right.shape[:-2])
    meta = contiguous_meta((*batch, left.shape[-2], right.shape[-1]), left.dtype)
    return draft.emit(at, "aten.matmul.default", (a, b), meta)


def full(draft: Draft, at: Node, shape: Sequence[int], value: float, dtype: str) -> Ref:
    meta = contiguous_meta(shape, dtype)
    return draft.emit(at, "aten.full.default", (list(shape), value), meta, {"dtype": DtypeArg(dtype=dtype)})
