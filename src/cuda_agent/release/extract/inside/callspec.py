"""Describes a submodule's call as a spec with numbered tensors, and matches other calls with it."""

from collections.abc import Sequence
from typing import Any

import torch

from cuda_agent.core.graph import TensorMeta
from cuda_agent.workers.inside.task.pytree import Spec, dtype_from_name, flatten


def describe(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Spec, list[Any]]:
    """Returns (spec, tensors) of `f(*args, **kwargs)`. Raises TaskError for values that can't pass between
    processes."""
    return flatten({"args": list(args), "kwargs": dict(kwargs)})


class Matcher:
    """Matches calls that have the same nesting and constants, and the same shapes and types of tensors."""

    def __init__(self, spec: Spec, inputs: Sequence[TensorMeta]) -> None:
        self._spec = spec
        self._wanted = [(torch.Size(m.shape), dtype_from_name(m.dtype), m.strides) for m in inputs]

    def tensors(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any] | None:
        """Returns the call's tensors in order, in the described layout, or None where the call doesn't match."""
        found: list[Any] = [None] * len(self._wanted)
        return found if self._take(self._spec, {"args": tuple(args), "kwargs": kwargs}, found) else None

    def _take(self, spec: Spec, value: Any, found: list[Any]) -> bool:
        index = spec.get("t")
        if index is not None:
            if not isinstance(value, torch.Tensor):
                return False
            shape, dtype, strides = self._wanted[index]
            if value.shape != shape or value.dtype != dtype:
                return False
            if value.stride() != strides:
                value = torch.empty_strided(shape, strides, dtype=dtype, device=value.device).copy_(value)
            found[index] = value
            return True
        if "v" in spec:
            wanted = spec["v"]
            return value is wanted or (type(value) is type(wanted) and bool(value == wanted))
        for kind in ("list", "tuple"):
            if kind in spec:
                parts = spec[kind]
                same = isinstance(value, (list, tuple)) and len(value) == len(parts)
                return same and all(self._take(part, item, found) for part, item in zip(parts, value, strict=True))
        if "dict" in spec:
            parts = spec["dict"]
            same = isinstance(value, dict) and value.keys() == parts.keys()
            return same and all(self._take(part, value[key], found) for key, part in parts.items())
        try:
            return flatten(value) == (spec, [])
        except Exception as error:  # noqa: BLE001 - any value of the user's code; one that can't be flattened isn't this constant
            del error
            return False
