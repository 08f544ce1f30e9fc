"""The intermediate representation that graphs are lowered to: values over dense index spaces, as plain data.

Every value is a function from its index to a scalar. Only a `Source` is in memory. Views are index functions and cost
nothing. `frame.py` turns values into expressions over a kernel's loop variables.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from cuda_agent.core.graph import TensorMeta

Scalar: TypeAlias = bool | int | float

HALF_DTYPES = ("bfloat16", "float16")
FLOAT_DTYPES = ("float32", "bfloat16", "float16", "float64")
ITEM_BYTES = {
    "float64": 8, "int64": 8, "float32": 4, "int32": 4, "bfloat16": 2, "float16": 2, "int16": 2, "int8": 1, "uint8": 1,
    "bool": 1,
}  # fmt: skip
_RANK = {"bool": 0, "uint8": 1, "int8": 1, "int16": 2, "int32": 3, "int64": 4, "float16": 5, "bfloat16": 5,
         "float32": 6, "float64": 7}  # fmt: skip


def compute_type(dtype: str) -> str:
    """Returns the type that kernels compute a dtype in: f32 for 16-bit floats too, i32 for narrow integers."""
    return {"float64": "f64", "int64": "i64", "bool": "b"}.get(dtype, "f32" if dtype in FLOAT_DTYPES else "i32")


def is_integer(dtype: str) -> bool:
    return dtype not in FLOAT_DTYPES and dtype != "bool"


def as_scalar_of(value: Scalar, dtype: str) -> Scalar:
    """Returns a number as PyTorch passes it to an operator of this dtype: integers wrap around."""
    if isinstance(value, float) or not is_integer(dtype):
        return value
    bits = 8 * ITEM_BYTES[dtype]
    low = 0 if dtype == "uint8" else -(1 << (bits - 1))
    return (int(value) - low) % (1 << bits) + low


def promote(a: str, b: str) -> str:
    """Returns PyTorch's result type of two tensors of dimension ≥ 1."""
    if {a, b} == {"float16", "bfloat16"}:
        return "float32"
    if {a, b} == {"uint8", "int8"}:
        return "int16"
    return a if _RANK[a] >= _RANK[b] else b


def broadcast(*shapes: Sequence[int]) -> tuple[int, ...]:
    """Returns the shape of operands that are broadcast."""
    rank = max(map(len, shapes), default=0)
    aligned = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(next((size for size in sizes if size != 1), 1) for sizes in zip(*aligned, strict=True))


def numel(shape: Sequence[int]) -> int:
    return math.prod(shape)


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns row-major strides in elements."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def contiguous_meta(shape: Sequence[int], dtype: str) -> TensorMeta:
    """Returns the meta of a row-major tensor."""
    return TensorMeta(shape=tuple(shape), dtype=dtype, strides=contiguous(shape))


def resized(shape: Sequence[int], dim: int, *sizes: int) -> tuple[int, ...]:
    """Returns the shape with these sizes in the place of dimension `dim`."""
    return (*shape[:dim], *sizes, *shape[dim + 1 :])


def channels_last(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the strides of [batch, channels, spatial…] with the channels innermost."""
    return ordered_strides(shape, (0, *range(2, len(shape)), 1))


def ordered_strides(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Returns the strides of a dense tensor whose dimensions lie in memory in this order, outermost first."""
    steps = dict(zip(order, contiguous([shape[dim] for dim in order]), strict=True))
    return tuple(steps[dim] for dim in range(len(shape)))


def same_strides(shape: Sequence[int], a: Sequence[int], b: Sequence[int]) -> bool:
    """Returns whether the strides are equal in all dimensions of more than one element."""
    return all(size == 1 or x == y for size, x, y in zip(shape, a, b, strict=True))


def dense_strides(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Returns the strides if they are a permutation of a row-major layout, otherwise row-major strides."""
    step = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size == 1:
            continue
        if stride != step:
            return contiguous(shape)
        step *= size
    # Dimensions of size 1 may have any strides: a row-major tensor gets the usual ones.
    return contiguous(shape) if same_strides(shape, strides, contiguous(shape)) else tuple(strides)


@dataclass(frozen=True)
class Value:
    """The base of all values. `dtype` is the stored type; kernels compute in `compute_type(dtype)`."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Source(Value):
    """A tensor in memory: a graph input, a weight, or the result of a library call."""

    strides: tuple[int, ...] = ()


@dataclass(frozen=True)
class Pointwise(Value):
    """`op` of values (broadcast as in PyTorch) and scalars. It is computed in type `at`."""

    op: str = ""
    args: tuple[str | Scalar, ...] = ()
    at: str = "f32"


@dataclass(frozen=True)
class Axis:
    """The index along one dimension of a view's operand: offset + step · (the view's index along its dimension `of`).
    A view of sliding windows adds spacing · (its index along its dimension `tap`)."""

    of: int | None
    step: int = 1
    offset: int = 0
    tap: int | None = None
    spacing: int = 1


@dataclass(frozen=True)
class Strided(Value):
    """The view that permute, transpose, expand, slice, select, flip, squeeze or unsqueeze makes, with one `Axis` per
    dimension of the operand."""

    arg: str = ""
    axes: tuple[Axis, ...] = ()


@dataclass(frozen=True)
class Reshape(Value):
    """The operand's elements in row-major order under another shape."""

    arg: str = ""


@dataclass(frozen=True)
class Cat(Value):
    """The operands one after the other along `dim`, where they have these `sizes`."""

    args: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    dim: int = 0


@dataclass(frozen=True)
class Pad(Value):
    """The operand, of shape `inner`, begins at `low` in each dimension. `fill` surrounds it."""

    arg: str = ""
    low: tuple[int, ...] = ()
    inner: tuple[int, ...] = ()
    fill: Scalar = 0.0


@dataclass(frozen=True)
class Take(Value):
    """operand[…, index[…], …]: a value indexes the operand's dimension `dim`.

    The result's dimension `axes[d]` runs along the operand's dimension d (-1 at `dim`), and its dimensions `index_axes`
    run along the index.
    """

    arg: str = ""
    dim: int = 0
    index: str = ""
    axes: tuple[int, ...] = ()
    index_axes: tuple[int, ...] = ()
    #: whether negative indices count from the end. Otherwise they are out of range.
    wraps: bool = False


@dataclass(frozen=True)
class Iota(Value):
    """start + step · (index along `dim`)."""

    dim: int = 0
    start: int = 0
    step: int = 1


@dataclass(frozen=True)
class Slide:
    """One direction of a sliding window. The element at the operand's indices along `dim` (kept) and `tap` (reduced)
    has the position stride · index[dim] + dilation · index[tap] in the padded input."""

    dim: int
    tap: int
    stride: int
    dilation: int


@dataclass(frozen=True)
class Reduce(Value):
    """The reduction of `arg` over `dims`, which the result doesn't have. Kinds are sum prod max min any all, `expsum`
    (Σ exp(x - max x)) and `m2` (Σ (x - mean x)²). A reduction over sliding windows has `slides`."""

    kind: str = "sum"
    arg: str = ""
    dims: tuple[int, ...] = ()
    slides: tuple[Slide, ...] = ()


@dataclass(frozen=True)
class Scan(Value):
    """The inclusive scan along `dim`. Kinds are sum prod max min, and `logsum`, the logarithm of the running sum of
    exponentials."""

    kind: str = "sum"
    arg: str = ""
    dim: int = 0


def operands(value: Value) -> tuple[str, ...]:
    """Returns the names of the values that a value reads."""
    if isinstance(value, Pointwise):
        return tuple(arg for arg in value.args if isinstance(arg, str))
    if isinstance(value, Strided | Reshape | Pad | Reduce | Scan):
        return (value.arg,)
    if isinstance(value, Cat):
        return value.args
    if isinstance(value, Take):
        return (value.arg, value.index)
    return ()
