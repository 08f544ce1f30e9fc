"""A convolution call as numbers: sizes, paddings, strides of every spatial dimension."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cuda_agent.core.graph import Arg, Node, Ref, TensorMeta

#: operator -> (spatial dimensions, transposed)
_NAMED = {
    "aten.conv1d.default": (1, False),
    "aten.conv2d.default": (2, False),
    "aten.conv3d.default": (3, False),
    "aten.conv1d.padding": (1, False),
    "aten.conv2d.padding": (2, False),
    "aten.conv3d.padding": (3, False),
    "aten.conv_transpose1d.default": (1, True),
    "aten.conv_transpose2d.input": (2, True),
    "aten.conv_transpose3d.input": (3, True),
}
_GENERAL = "aten.convolution.default"
_TYPES = ("float32", "bfloat16", "float16")
#: elements of a window up to which a channel that's convolved by itself is a reduction over a sliding window.
MOST_TAPS = 64


class _Metas(Protocol):
    """Whoever knows the shapes of graph values."""

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
        """Whether every channel is convolved by itself, with few taps: bound by memory, not a matrix product."""
        alone = self.groups == self.in_channels and not self.transposed
        return alone and math.prod(axis.filter for axis in self.axes) <= MOST_TAPS

    @property
    def operations(self) -> int:
        """Multiply–adds."""
        pixels = math.prod(axis.size if self.transposed else axis.result for axis in self.axes)
        taps = math.prod(axis.filter for axis in self.axes)
        return self.batch * pixels * taps * self.in_channels * self.out_channels // self.groups


def _get(node: Node, index: int, name: str, default: Arg) -> Arg:
    value = node.argument(index, name, default)
    return default if value is None else value


def _spread(value: Arg, dims: int) -> list[int] | None:
    """One number for all dimensions, or one for each."""
    if isinstance(value, int):
        return [value] * dims
    if not isinstance(value, list | tuple) or not all(isinstance(item, int) for item in value):
        return None
    numbers = [item for item in value if isinstance(item, int)]
    return numbers * dims if len(numbers) == 1 else numbers if len(numbers) == dims else None


def _padding(value: Arg, dims: int, filters: Sequence[int], dilation: Sequence[int]) -> list[tuple[int, int]] | None:
    """Before and after; the names `same` (as torch does: the odd one after) and `valid` included."""
    if value == "valid":
        return [(0, 0)] * dims
    if value == "same":
        totals = [step * (size - 1) for size, step in zip(filters, dilation, strict=True)]
        return [(total // 2, total - total // 2) for total in totals]
    numbers = _spread(value, dims)
    return [(number, number) for number in numbers] if numbers is not None else None


def read(state: _Metas, node: Node) -> Convolution | None:
    """The call behind a node; None for another operator, a type without kernels, or a form that isn't known."""
    result = node.outputs[0] if node.outputs else None
    if (node.op not in _NAMED and node.op != _GENERAL) or result is None or result.dtype not in _TYPES:
        return None
    x, weight = node.args[0], node.args[1]
    bias = _get(node, 2, "bias", None)
    if not isinstance(x, Ref) or not isinstance(weight, Ref) or not (bias is None or isinstance(bias, Ref)):
        return None
    x_meta, w_meta = state.meta(x.ref), state.meta(weight.ref)
    dims = len(w_meta.shape) - 2
    if {x_meta.dtype, w_meta.dtype} != {result.dtype} or 0 in (*x_meta.shape, *w_meta.shape, *result.shape):
        return None
    if node.op == _GENERAL:
        transposed, groups, extra = (
            bool(_get(node, 6, "transposed", False)),
            _get(node, 8, "groups", 1),
            _get(node, 7, "output_padding", 0),
        )
        dilation_at = 5
    else:
        transposed = _NAMED[node.op][1]
        # conv(…, dilation, groups) but conv_transpose(…, output_padding, groups, dilation)
        extra = _get(node, 5, "output_padding", 0) if transposed else 0
        groups, dilation_at = _get(node, 6, "groups", 1), 7 if transposed else 5
    stride = _spread(_get(node, 3, "stride", 1), dims)
    dilation = _spread(_get(node, dilation_at, "dilation", 1), dims)
    more = _spread(extra, dims)
    if stride is None or dilation is None or more is None or not isinstance(groups, int):
        return None
    padding = _padding(_get(node, 4, "padding", 0), dims, w_meta.shape[2:], dilation)
    if padding is None:
        return None
    batched = len(x_meta.shape) == dims + 2
    sizes, results = x_meta.shape[-dims:], result.shape[-dims:]
    axes = tuple(
        Axis(sizes[i], results[i], w_meta.shape[i + 2], *padding[i], stride[i], dilation[i], more[i])
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
