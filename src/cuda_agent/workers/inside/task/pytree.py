"""Converts nested inputs and outputs to a JSON-able spec and a flat list of tensors, and back.

Leaves: {"t": i} is the i-th tensor, {"v": scalar or None}, {"f": "inf" | "-inf" | "nan"}, {"dtype": "float32"}. Nests:
{"list": […]}, {"tuple": […]}, {"dict": {name: …}}. A named tuple, a dataclass or a `ModelOutput` becomes a tuple of its
fields with {"note": class name} beside it, so that an answer needs the values and not the class.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from cuda_agent.core.errors import TaskError
from cuda_agent.core.graph import TensorMeta

#: a spec describes a few tensors. A larger one comes from a broken or hostile task.
MAX_LEAVES = 4096
MAX_DEPTH = 32
MAX_TEXT = 65536

Spec = dict[str, Any]


def dtype_name(dtype: Any) -> str:
    """Returns `float32` for `torch.float32`."""
    return str(dtype).removeprefix("torch.")


def dtype_from_name(name: str) -> Any:
    """Returns `torch.float32` for `float32`. Raises TaskError for another text."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise TaskError(f"{name!r} is not a tensor type")
    return dtype


def tensor_meta(tensor: Any) -> TensorMeta:
    """Returns shape, dtype and strides of a strided tensor. Its storage offset is not kept."""
    return TensorMeta(
        shape=tuple(int(size) for size in tensor.shape),
        dtype=dtype_name(tensor.dtype),
        strides=tuple(int(stride) for stride in tensor.stride()),
    )


class CannotPass(TaskError):
    """A value of a kind that `flatten` refuses. `kind` is the name of its class."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        super().__init__(f"a value of type {kind} can't be passed on", "Use tensors, numbers and text")


def flatten(value: Any) -> tuple[Spec, list[Any]]:
    """Returns (spec, tensors in order). Raises TaskError for what can't cross between processes: other objects, sparse
    or subclassed tensors, dict keys that aren't text, more than `MAX_LEAVES` leaves, more than `MAX_DEPTH` levels."""
    tensors: list[Any] = []
    return _Flattener(tensors).visit(value, 0), tensors


def unflatten(spec: Spec, tensors: Sequence[Any]) -> Any:
    """Returns the value that `flatten` described, with `tensors` in their places. Raises TaskError for a malformed
    spec."""
    return _unflatten(spec, tensors, 0)


def tensor_paths(spec: Spec, path: str = "") -> list[str]:
    """Returns a readable place for every tensor, in order: `[0]`, `['mask']`, or an empty text where the value is the
    tensor."""
    return [where for where, leaf in leaves(spec, path) if "t" in leaf]


def leaves(spec: Spec, path: str = "") -> Iterator[tuple[str, Spec]]:
    """Yields the readable place and the spec of every leaf, in order."""
    nest = next((spec[kind] for kind in ("list", "tuple", "dict") if kind in spec), None)
    if nest is None:
        yield path, spec
    else:
        for key, item in nest.items() if isinstance(nest, dict) else enumerate(nest):
            yield from leaves(item, f"{path}[{key!r}]")


class _Flattener:
    def __init__(self, tensors: list[Any]) -> None:
        self.tensors = tensors
        self.leaves = 0

    def visit(self, value: Any, depth: int) -> Spec:
        if depth > MAX_DEPTH:
            raise TaskError(
                f"a value is nested deeper than {MAX_DEPTH} levels", "Return tensors in a flat list or tuple"
            )
        if isinstance(value, (list, tuple, dict)) or _is_dataclass(value):
            return self._nest(value, depth)
        self.leaves += 1
        if self.leaves > MAX_LEAVES:
            raise TaskError(f"a value holds more than {MAX_LEAVES} leaves", "Stack the tensors into fewer")
        return self._leaf(value)

    def _nest(self, value: Any, depth: int) -> Spec:
        if _is_dataclass(value):
            fields = [getattr(value, field.name) for field in dataclasses.fields(value)]
            return {"tuple": [self.visit(v, depth + 1) for v in fields], "note": type(value).__name__}
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str):
                    raise TaskError(f"a dict has the key {key!r}, which is not text", "Use text keys")
            return {"dict": {key: self.visit(item, depth + 1) for key, item in value.items()}}
        items = [self.visit(item, depth + 1) for item in value]
        if isinstance(value, list):
            return {"list": items}
        return {"tuple": items} if type(value) is tuple else {"tuple": items, "note": type(value).__name__}

    def _leaf(self, value: Any) -> Spec:
        if isinstance(value, torch.Tensor):
            _check_plain(value)
            self.tensors.append(value)
            return {"t": len(self.tensors) - 1}
        if isinstance(value, torch.dtype):
            return {"dtype": dtype_name(value)}
        if value is None or isinstance(value, (bool, int)):
            return {"v": value}
        if isinstance(value, float):
            return {"v": value} if math.isfinite(value) else {"f": str(value)}
        if isinstance(value, str) and len(value) <= MAX_TEXT:
            return {"v": value}
        raise CannotPass(type(value).__name__)


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _check_plain(tensor: Any) -> None:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        raise TaskError(f"a tensor of the class {type(tensor).__name__} can't be passed on", "Use plain tensors")
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_complex():
        raise TaskError(
            f"a {dtype_name(tensor.dtype)} tensor with layout {tensor.layout} can't be passed on",
            "Use dense tensors of real numbers, integers or booleans",
        )


def _unflatten(spec: Any, tensors: Sequence[Any], depth: int) -> Any:
    if not isinstance(spec, dict) or depth > MAX_DEPTH:
        raise TaskError("a value's description is malformed")
    if "t" in spec:
        index = spec["t"]
        if type(index) is not int or not 0 <= index < len(tensors):
            raise TaskError(f"a value's description names tensor {index!r} of {len(tensors)}")
        return tensors[index]
    if "v" in spec:
        return spec["v"]
    if "f" in spec:
        return {"inf": math.inf, "-inf": -math.inf}.get(str(spec["f"]), math.nan)
    if "dtype" in spec:
        return dtype_from_name(str(spec["dtype"]))
    if isinstance(spec.get("list"), list):
        return [_unflatten(item, tensors, depth + 1) for item in spec["list"]]
    if isinstance(spec.get("tuple"), list):
        return tuple(_unflatten(item, tensors, depth + 1) for item in spec["tuple"])
    if isinstance(spec.get("dict"), dict):
        return {str(key): _unflatten(item, tensors, depth + 1) for key, item in spec["dict"].items()}
    raise TaskError("a value's description is malformed")
