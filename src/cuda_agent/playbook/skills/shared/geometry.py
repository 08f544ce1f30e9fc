"""A convolution call as numbers: sizes, paddings, strides of every spatial dimension."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cuda_agent.core.graph import Arg, Node, Ref, TensorMeta

_GENERAL = "aten.convolution.default"
#: operator -> the places of its arguments output_padding (9 for none), groups and dilation.
_PLACES = {
    **{f"aten.conv{n}d.{form}": (9, 6, 5) for n in (1, 2, 3) for form in ("default", "padding")},
    **{f"aten.conv_transpose{n}d.{form}": (5, 6, 7) for n, form in ((1, "default"), (2, "input"), (3, "input"))},
    _GENERAL: (7, 8, 5),
}
_TYPES = ("float32", "bfloat16", "float16")
#: elements of a window up to which a channel that's convolved by itself is a reduction over a sliding window.
MOST_TAPS = 64


class _Metas(Protocol):
    """Knows the shapes of graph values."""

    def meta(self, name: str) -> TensorMeta: ...


@dataclass(frozen=True)
class Axis:
    """One spatial dimension. `extra` is a transposed convolution's output padding."""

    size: int
    result: int
    filter: int
    before: int
    after: int
    stride: int
    dilation: int
    extra: int = 0


@dataclass(frozen=True)
class Convolution:
    """y [batch, out_channels, …] = conv(x [batch, in_channels, …], weight) + bias. `result` is the node's own meta."""

    x: str
    weight: str
    bias: str | None
    batch: int
    in_channels: int
    out_channels: int
    groups: int
    transposed: bool
    axes: tuple[Axis, ...]
    result: TensorMeta

    @property
    def is_stencil(self) -> bool:
        """Whether every channel is convolved by itself, with few taps. Memory bounds such a convolution."""
        alone = self.groups == self.in_channels and not self.transposed
        return alone and math.prod(axis.filter for axis in self.axes) <= MOST_TAPS


def _get(node: Node, index: int, name: str, default: Arg) -> Arg:
    value = node.argument(index, name, default)
    return default if value is None else value


def _spread(value: Arg, dims: int) -> list[int] | None:
    """Returns one number a dimension; a single one counts for all."""
    if isinstance(value, int):
        return [value] * dims
    if not isinstance(value, list | tuple) or not all(isinstance(item, int) for item in value):
        return None
    numbers = [item for item in value if isinstance(item, int)]
    return numbers * dims if len(numbers) == 1 else numbers if len(numbers) == dims else None


def _padding(value: Arg, dims: int, filters: Sequence[int], dilation: Sequence[int]) -> list[tuple[int, int]] | None:
    """Returns (before, after) for each dimension. `same` puts the odd element after, as torch does."""
    if value == "valid":
        return [(0, 0)] * dims
    if value == "same":
        totals = [step * (size - 1) for size, step in zip(filters, dilation, strict=True)]
        return [(total // 2, total - total // 2) for total in totals]
    numbers = _spread(value, dims)
    return [(number, number) for number in numbers] if numbers is not None else None


def read(state: _Metas, node: Node) -> Convolution | None:
    """Returns the convolution that a node computes, or None for other operators, types and forms."""
    result = node.outputs[0] if node.outputs else None
    if node.op not in _PLACES or result is None or result.dtype not in _TYPES:
        return None
    x, weight = node.args[0], node.args[1]
    bias = _get(node, 2, "bias", None)
    if not isinstance(x, Ref) or not isinstance(weight, Ref) or not (bias is None or isinstance(bias, Ref)):
        return None
    x_meta, w_meta = state.meta(x.ref), state.meta(weight.ref)
    dims = len(w_meta.shape) - 2
    if {x_meta.dtype, w_meta.dtype} != {result.dtype} or 0 in (*x_meta.shape, *w_meta.shape, *result.shape):
        return None
    extra_at, groups_at, dilation_at = _PLACES[node.op]
    transposed = bool(_get(node, 6, "transposed", False)) if node.op == _GENERAL else "transpose" in node.op
    groups, stride = _get(node, groups_at, "groups", 1), _spread(_get(node, 3, "stride", 1), dims)
    dilation = _spread(_get(node, dilation_at, "dilation", 1), dims)
    extra = _spread(_get(node, extra_at, "output_padding", 0), dims)
    if stride is None or dilation is None or extra is None or not isinstance(groups, int):
        return None
    padding = _padding(_get(node, 4, "padding", 0), dims, w_meta.shape[2:], dilation)
    if padding is None:
        return None
    batched = len(x_meta.shape) == dims + 2
    sizes, results = x_meta.shape[-dims:], result.shape[-dims:]
    axes = tuple(
        Axis(sizes[i], results[i], w_meta.shape[i + 2], *padding[i], stride[i], dilation[i], extra[i])
        for i in range(dims)
    )
    return Convolution(
        x=x.ref,
        weight=weight.ref,
        bias=bias.ref if isinstance(bias, Ref) else None,
        batch=x_meta.shape[0] if batched else 1,
        in_channels=x_meta.shape[-dims - 1],
        out_channels=result.shape[-dims - 1],
        groups=groups,
        transposed=transposed,
        axes=axes,
        result=result,
    )
