"""The small language that graphs are lowered to: a few kinds of values over dense index spaces, in plain data.

Every value is a function from its index to a scalar. Views are index functions and cost nothing; only `Source` is in
memory. `frame.py` turns values into expressions over a kernel's loop variables.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

Scalar: TypeAlias = bool | int | float

FLOAT_DTYPES = ("float32", "bfloat16", "float16", "float64")
ITEM_BYTES = {
    "float64": 8, "int64": 8, "float32": 4, "int32": 4, "bfloat16": 2, "float16": 2, "int16": 2, "int8": 1, "uint8": 1,
    "bool": 1,
}  # fmt: skip
_RANK = {"bool": 0, "uint8": 1, "int8": 1, "int16": 2, "int32": 3, "int64": 4, "float16": 5, "bfloat16": 5,
         "float32": 6, "float64": 7}  # fmt: skip


def compute_type(dtype: str) -> str:
    """The type that a kernel computes a dtype in: f32 for 16-bit floats too, i32 for narrow integers."""
    return {"float64": "f64", "int64": "i64", "bool": "b"}.get(dtype, "f32" if dtype in FLOAT_DTYPES else "i32")


def promote(a: str, b: str) -> str:
    """PyTorch's promotion between two tensors of dimension ≥ 1."""
    if {a, b} == {"float16", "bfloat16"}:
        return "float32"
    if {a, b} == {"uint8", "int8"}:
        return "int16"
    return a if _RANK[a] >= _RANK[b] else b


def numel(shape: Sequence[int]) -> int:
    return math.prod(shape)


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def channels_last(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of [first, channels, spatial…] with the channels innermost."""
    inner = contiguous((shape[0], *shape[2:], shape[1]))
    return (inner[0], inner[-1], *inner[1:-1])


def same_strides(shape: Sequence[int], a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether these strides are equal, wherever there is more than one element."""
    return all(size == 1 or x == y for size, x, y in zip(shape, a, b, strict=True))


def dense_strides(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """The strides, if they are a permutation of a row-major layout; row-major ones otherwise."""
    step = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size == 1:
            continue
        if stride != step:
            return contiguous(shape)
        step *= size
    if any(size == 1 for size in shape):
        return _strides_with_ones(shape, strides)
    return tuple(strides)


def _strides_with_ones(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    if all(s == c for s, c, size in zip(strides, contiguous(shape), shape, strict=True) if size != 1):
        return contiguous(shape)
    return tuple(strides)


@dataclass(frozen=True)
class Value:
    """What all values have. `dtype` is the stored one; inside a kernel it's computed in `compute_type(dtype)`."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Source(Value):
    """Memory: a graph input, a weight, an anchor's result."""

    strides: tuple[int, ...] = ()


@dataclass(frozen=True)
class Pointwise(Value):
    """`op` of values (broadcast as PyTorch does) and scalars. `at` is the type that it's computed in."""

    op: str = ""
    args: tuple[str | Scalar, ...] = ()
    at: str = "f32"


@dataclass(frozen=True)
class Axis:
    """One dimension of a strided view's operand: index = offset + step · (index of the view's dimension `of`). A view
    of sliding windows adds spacing · (index of its dimension `tap`)."""

    of: int | None
    step: int = 1
    offset: int = 0
    tap: int | None = None
    spacing: int = 1


@dataclass(frozen=True)
class Strided(Value):
    """permute, transpose, expand, slice, select, flip, squeeze, unsqueeze: one `Axis` per dimension of the operand."""

    arg: str = ""
    axes: tuple[Axis, ...] = ()


@dataclass(frozen=True)
class Reshape(Value):
    """The operand's elements in row-major order under another shape."""

    arg: str = ""


@dataclass(frozen=True)
class Cat(Value):
    args: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    dim: int = 0


@dataclass(frozen=True)
class Pad(Value):
    """`fill` outside of the operand, which begins at `low` in each dimension."""

    arg: str = ""
    low: tuple[int, ...] = ()
    inner: tuple[int, ...] = ()
    fill: Scalar = 0.0


@dataclass(frozen=True)
class Take(Value):
    """operand[…, index[…], …]: the operand's dimension `dim` is indexed by a value; `axes[d]` is the result's dimension
    that runs along the operand's dimension d (-1 at `dim`), `index_axes` those along the index."""

    arg: str = ""
    dim: int = 0
    index: str = ""
    axes: tuple[int, ...] = ()
    index_axes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Iota(Value):
    """start + step · index along `dim`."""

    dim: int = 0
    start: int = 0
    step: int = 1


@dataclass(frozen=True)
class Slide:
    """One direction in which a window slides over what is reduced: the operand's dimensions `dim` (kept) and `tap`
    (reduced) meet at the position stride · index[dim] + dilation · index[tap]."""

    dim: int
    tap: int
    stride: int
    dilation: int


@dataclass(frozen=True)
class Reduce(Value):
    """Reduction of `arg` over `dims`, which the result doesn't have. Kinds: sum prod max min any all; `expsum` is
    Σ exp(x - max x), `m2` is Σ (x - mean x)². `slides` where it reduces a window that slides."""

    kind: str = "sum"
    arg: str = ""
    dims: tuple[int, ...] = ()
    slides: tuple[Slide, ...] = ()


@dataclass(frozen=True)
class Scan(Value):
    """Running result along `dim`, the element itself included. Kinds: sum prod max min, and `logsum`, the logarithm of
    the running sum of exponentials."""

    kind: str = "sum"
    arg: str = ""
    dim: int = 0


def operands(value: Value) -> tuple[str, ...]:
    """Names of the values that a value reads."""
    if isinstance(value, Pointwise):
        return tuple(arg for arg in value.args if isinstance(arg, str))
    if isinstance(value, Strided | Reshape | Pad | Reduce | Scan):
        return (value.arg,)
    if isinstance(value, Cat):
        return value.args
    if isinstance(value, Take):
        return (value.arg, value.index)
    return ()
