"""Emitters of the ATen operators that rewrites build on, each with the shape and type of its result."""

from __future__ import annotations

from collections.abc import Sequence

from cuda_agent.core.graph import Arg, DtypeArg, Node, Ref, TensorMeta
from cuda_agent.playbook.algebra.draft import Draft, contiguous

_RANK = {"float16": 1, "bfloat16": 1, "float32": 2, "float64": 3}


def integers(arg: Arg) -> tuple[int, ...]:
    """A list of integers; a single one counts as a list of one, None as none."""
    if arg is None:
        return ()
    if isinstance(arg, int):
        return (arg,)
    assert isinstance(arg, list | tuple)
    return tuple(int(item) for item in arg if isinstance(item, int))


def broadcast(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    rank = max(len(a), len(b))
    left, right = (1,) * (rank - len(a)) + tuple(a), (1,) * (rank - len(b)) + tuple(b)
    return tuple(y if x == 1 else x for x, y in zip(left, right, strict=True))


def promoted(draft: Draft, a: Ref, b: Arg) -> str:
    """torch's result type of two floating-point operands; a number or a 0-dimensional tensor doesn't promote."""
    first = draft.meta(a)
    if not isinstance(b, Ref):
        return first.dtype
    second = draft.meta(b)
    if bool(first.shape) != bool(second.shape):
        return first.dtype if first.shape else second.dtype
    if first.dtype == second.dtype:
        return first.dtype
    x, y = _RANK[first.dtype], _RANK[second.dtype]
    return "float32" if x == y else (first.dtype if x > y else second.dtype)


def binary(draft: Draft, at: Node, op: str, a: Ref, b: Arg) -> Ref:
    """`op` is one of add, sub, mul, div; b may be a number."""
    other = draft.meta(b).shape if isinstance(b, Ref) else ()
    meta = contiguous(broadcast(draft.meta(a).shape, other), promoted(draft, a, b))
    return draft.emit(at, f"aten.{op}.Tensor", (a, b), meta)


def unary(draft: Draft, at: Node, op: str, a: Ref) -> Ref:
    meta = draft.meta(a)
    return draft.emit(at, f"aten.{op}.default", (a,), contiguous(meta.shape, meta.dtype))


def cast(draft: Draft, at: Node, a: Ref, dtype: str) -> Ref:
    """The same values in another type; the value itself when it has it already."""
    meta = draft.meta(a)
    if meta.dtype == dtype:
        return a
    return draft.emit(
        at, "aten._to_copy.default", (a,), contiguous(meta.shape, dtype), {"dtype": DtypeArg(dtype=dtype)}
    )


def wide(draft: Draft, at: Node, a: Ref) -> Ref:
    """Half-precision values in float32, others as they are: derived weights are rounded once, at the end."""
    return cast(draft, at, a, "float32") if draft.meta(a).dtype in ("bfloat16", "float16") else a


def reshape(draft: Draft, at: Node, a: Ref, shape: Sequence[int]) -> Ref:
    meta = draft.meta(a)
    if meta.shape == tuple(shape):
        return a
    return draft.emit(at, "aten.reshape.default", (a, list(shape)), contiguous(shape, meta.dtype))


def transpose(draft: Draft, at: Node, a: Ref) -> Ref:
    """The transpose of a matrix, as a view."""
    meta = draft.meta(a)
    rows, columns = meta.shape
    view = meta.model_copy(update={"shape": (columns, rows), "strides": meta.strides[::-1]})
    return draft.emit(at, "aten.t.default", (a,), view)


def permute(draft: Draft, at: Node, a: Ref, order: Sequence[int]) -> Ref:
    """The value with its dimensions in another order, as a view."""
    if tuple(order) == tuple(range(len(order))):
        return a
    meta = draft.meta(a)
    view = TensorMeta(
        shape=tuple(meta.shape[i] for i in order), dtype=meta.dtype, strides=tuple(meta.strides[i] for i in order)
    )
    return draft.emit(at, "aten.permute.default", (a, list(order)), view)


def reduced_shape(shape: Sequence[int], dims: Sequence[int], keepdim: bool) -> tuple[int, ...]:
    if keepdim:
        return tuple(1 if index in dims else size for index, size in enumerate(shape))
    return tuple(size for index, size in enumerate(shape) if index not in dims)


def reduce(draft: Draft, at: Node, op: str, a: Ref, dims: Sequence[int], keepdim: bool = False) -> Ref:
    """`op` is sum or mean."""
    meta = draft.meta(a)
    full = "aten.sum.dim_IntList" if op == "sum" else "aten.mean.dim"
    shape = reduced_shape(meta.shape, dims, keepdim)
    return draft.emit(at, full, (a, list(dims), keepdim), contiguous(shape, meta.dtype))


def linear(draft: Draft, at: Node, x: Ref, weight: Ref, bias: Arg) -> Ref:
    """x [..., K], weight [N, K], bias [N] or None -> [..., N]."""
    meta = draft.meta(x)
    result = contiguous((*meta.shape[:-1], draft.meta(weight).shape[0]), meta.dtype)
    args: tuple[Arg, ...] = (x, weight) if bias is None else (x, weight, bias)
    return draft.emit(at, "aten.linear.default", args, result)


def matmul(draft: Draft, at: Node, a: Ref, b: Ref) -> Ref:
    """Operands of two or more dimensions."""
    left, right = draft.meta(a), draft.meta(b)
    batch = broadcast(left.shape[:-2], right.shape[:-2])
    meta = contiguous((*batch, left.shape[-2], right.shape[-1]), left.dtype)
    return draft.emit(at, "aten.matmul.default", (a, b), meta)


def full(draft: Draft, at: Node, shape: Sequence[int], value: float, dtype: str) -> Ref:
    meta = contiguous(shape, dtype)
    return draft.emit(at, "aten.full.default", (list(shape), value), meta, {"dtype": DtypeArg(dtype=dtype)})
