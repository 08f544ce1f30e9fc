"""Writes a submodule's call as a task's text: `forward`'s parameters and arguments, and how the inputs are drawn."""

import builtins
import inspect
import keyword
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from cuda_agent.core.errors import TaskError
from cuda_agent.core.graph import TensorMeta, spec_text
from cuda_agent.release.extract.closure import Inexpressible
from cuda_agent.release.extract.inside.callspec import describe
from cuda_agent.release.source_text import number_text
from cuda_agent.workers.buffers import contiguous, dense
from cuda_agent.workers.inside.task.pytree import Spec, flatten, tensor_meta

#: the most elements of a tensor that is searched for a pattern; a larger one is drawn at random.
_LOOKED_AT = 1 << 24


def captured(module: nn.Module, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Spec, list[Any]]:
    """Returns (spec, tensors) of a call. Raises Inexpressible, which names the argument that can't be written as
    text."""
    try:
        spec, tensors = describe(args, kwargs)
    except TaskError:
        named = zip(_positional_names(module, len(args)), args, strict=True)
        for name, value in (*named, *kwargs.items()):
            try:
                flatten(value)
            except TaskError as error:
                hint = "; pass --input use_cache=False" if "cache" in type(value).__name__.lower() else ""
                kind = f"is a {type(value).__name__}" if not isinstance(value, torch.Tensor) else f": {error.cause}"
                raise Inexpressible(f"its argument {name} {kind}, not tensors and plain values{hint}") from None
        raise Inexpressible("its arguments aren't tensors and plain values") from None
    if not tensors:
        raise Inexpressible("it is called without a tensor")
    return spec, tensors


def _positional_names(module: nn.Module, count: int) -> list[str]:
    try:
        parameters = list(inspect.signature(module.forward).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [parameter.name for parameter in parameters if parameter.kind in plain]
    return [names[index] if index < len(names) else f"input_{index}" for index in range(count)]


def plain_output(value: Any) -> None:
    """Raises Inexpressible where a submodule's output isn't a tensor, or a list, tuple or dict of tensors."""
    if isinstance(value, torch.Tensor) or value is None or isinstance(value, (bool, int, float, str)):
        return
    if type(value) in (list, tuple):
        for item in value:
            plain_output(item)
    elif type(value) is dict:
        for item in value.values():
            plain_output(item)
    else:
        raise Inexpressible(f"it returns a {type(value).__name__}, not tensors")


def metas(tensors: Sequence[Any]) -> tuple[TensorMeta, ...]:
    """Returns the metadata of the tensors that the task draws: dense ones in their own layout, others row-major."""
    return tuple(dense(tensor_meta(tensor)) for tensor in tensors)


class ForwardCall:
    """A submodule's call as text. `parameters[i]` is the name of tensor i in `forward`."""

    def __init__(self, module: nn.Module, spec: Spec, count: int) -> None:
        self.parameters = [""] * count
        args, kwargs = spec["dict"]["args"]["list"], spec["dict"]["kwargs"]["dict"]
        names = _positional_names(module, len(args))
        parts = [spec_text(part, name, self._parameter) for name, part in zip(names, args, strict=True)]
        parts += [f"{name}={spec_text(part, name, self._parameter)}" for name, part in kwargs.items()]
        self.arguments = ", ".join(parts)

    def _parameter(self, index: int, name: str) -> str:
        """Names the parameter for tensor `index`."""
        free = name if name.isidentifier() and not keyword.iskeyword(name) else "tensor"
        # `input` is a common name in torch, and a builtin that a candidate may not name.
        free = f"{free}_" if free in ("self", "torch", "nn") or hasattr(builtins, free) else free
        number, word = 1, free
        while word in self.parameters:
            number, word = number + 1, f"{free}_{number}"
        self.parameters[index] = word
        return word


def draw(tensor: Any) -> str:
    """Returns text that draws a tensor like this: with its shape, type, layout, and its range, its mean and spread, or
    its pattern."""
    meta = metas([tensor])[0]
    order = sorted(range(tensor.dim()), key=lambda axis: -meta.strides[axis])
    text = _values(tensor.detach())
    if order == sorted(order) or contiguous(meta).strides == meta.strides:
        return text
    laid = tensor.detach().permute(order)
    back = [order.index(axis) for axis in range(tensor.dim())]
    text = _values(laid)
    plain = not any(sign in text for sign in (" * ", " + ", " - ", "~", " < "))
    return f"{text if plain else f'({text})'}.permute({', '.join(map(str, back))})"


def _values(tensor: Any) -> str:
    shape, kind = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    if tensor.numel() == 0:
        return f"torch.empty({shape}, dtype=torch.{kind})"
    pattern = _pattern(tensor, shape, kind) if tensor.numel() <= _LOOKED_AT else None
    if pattern is not None:
        return pattern
    if kind == "bool":
        return f"torch.rand({shape}) < {_short(float(tensor.float().mean()))}"
    if not tensor.is_floating_point():
        low, high = int(tensor.min()), int(tensor.max())
        return f"torch.randint({low}, {high + 1}, {shape}, dtype=torch.{kind})"
    cast = "" if kind == "float32" else f".to(torch.{kind})"
    if not bool(tensor.isfinite().all()):
        raise Inexpressible("an input holds infinities or NaN without a pattern that could be drawn again")
    least, most = float(tensor.min()), float(tensor.max())
    if least >= 0 and most > 0:
        return f"(torch.rand({shape}) * {_short(most)}){cast}"
    mean = float(tensor.float().mean())
    spread = float(tensor.float().std()) if tensor.numel() > 1 else 1.0
    if not math.isfinite(spread) or spread <= 0:
        spread = 1.0
    scaled = "" if 0.8 <= spread <= 1.25 else f" * {_short(spread)}"
    shifted = "" if abs(mean) < 0.1 * spread else f" {'+' if mean > 0 else '-'} {_short(abs(mean))}"
    drawn = f"torch.randn({shape}){scaled}{shifted}"
    return f"({drawn}){cast}" if (scaled or shifted) and cast else f"{drawn}{cast}"


def _pattern(tensor: Any, shape: tuple[int, ...], kind: str) -> str | None:
    """Returns text for a constant, positions or a triangular mask, whose values have a meaning; None for any other
    tensor."""
    first = tensor.reshape(-1)[0]
    if bool((tensor == first).all()) and tensor.numel() > 1:
        return f"torch.full({shape}, {number_text(first.item())}, dtype=torch.{kind})"
    last = shape[-1] if shape else 1
    counts = torch.arange(last, dtype=tensor.dtype, device=tensor.device) if kind != "bool" else None
    if counts is not None and last > 1 and bool((tensor == counts + first).all()):
        start = first.item()
        plain = f"torch.arange({start}, {start + last}, dtype=torch.{kind})"
        return plain if len(shape) == 1 else f"{plain}.expand({shape}).contiguous()"
    if len(shape) >= 2 and shape[-1] > 1 and shape[-2] > 1:
        return _triangle(tensor, shape, kind)
    return None


def _triangle(tensor: Any, shape: tuple[int, ...], kind: str) -> str | None:
    """Returns text for a mask of causal attention: one value on and below a diagonal, another above it."""
    low, high = tensor.reshape(-1)[shape[-1] * (shape[-2] - 1)], tensor[..., 0, -1].reshape(-1)[0]
    offset = shape[-1] - shape[-2]
    mask = torch.ones(shape[-2:], dtype=torch.bool, device=tensor.device).tril(offset)
    if bool(low == high) or not bool((tensor == torch.where(mask, low, high)).all()):
        return None
    below, above = low.item(), high.item()
    ones = f"torch.ones({shape}, dtype=torch.bool).tril({offset})"
    if kind == "bool":
        return ones if below else f"~{ones}"
    return f"torch.where({ones}, {number_text(below)}, {number_text(above)}).to(torch.{kind})"


def _short(value: float) -> str:
    return f"{value:.3g}"
