"""Estimates the memory of a task's call from shapes alone, before it uses a device."""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cuda_agent.workers.inside.task.pytree import flatten
from cuda_agent.workers.inside.task.taskmodule import TaskModule, make_init_inputs, make_inputs, make_model, run_forward


def estimated_bytes(task: TaskModule) -> tuple[int, int, int]:
    """Returns the bytes of a call's inputs, of its outputs, and of the rest that it holds at its peak, weights
    included. Raises whatever a task raises that needs values."""
    with torch.device("meta"):
        model = make_model(task, make_init_inputs(task), "meta", 0, on_device=True)
        inputs = make_inputs(task, "meta", 0)
        with _Live() as live:
            outputs = flatten(run_forward(task, model, inputs))[1]
        ends = [_bytes(tensors) for tensors in (flatten(inputs)[1], outputs)]
        state = _bytes([t for t in model.state_dict().values() if isinstance(t, torch.Tensor)])
    return ends[0], ends[1], state + max(0, live.peak - ends[1])


def _bytes(tensors: list[Any]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class _Live(TorchDispatchMode):  # type: ignore[misc]
    """Measures the most bytes of storages that operators have made and that still live. Inputs and weights, which no
    operator made, aren't counted unless one returns a view of them."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._sizes: dict[StorageWeakRef, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {_storage(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and _storage(leaf) not in given:
                self._sizes[_storage(leaf)] = leaf.untyped_storage().nbytes()
        self._sizes = {storage: size for storage, size in self._sizes.items() if not storage.expired()}
        self.peak = max(self.peak, sum(self._sizes.values()))
        return result


def _storage(tensor: Any) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())
