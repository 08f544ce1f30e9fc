"""Raises where an operator would read or write outside a tensor, before the operator runs.

On a GPU such an operator trips an assertion in its kernel, after which the process can't use the GPU. So task code that
is tried on shapes that it doesn't know runs under CheckedIndices.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

#: operators of (base, dim, index, …), whose index addresses `dim` of the base.
_ALONG = {
    *("gather", "index_add", "index_copy", "index_fill", "index_reduce", "index_select"),
    *("scatter", "scatter_add", "scatter_reduce"),
}
#: operators of (base, indices, …) with an index, or None, for each of the base's first dimensions.
_BY_LIST = {"index", "index_put", "_index_put_impl", "_unsafe_index", "_unsafe_index_put"}
#: operators of (base, index, …), whose index addresses the flattened base.
_FLAT = {"take", "put"}
_CLASSES = {"nll_loss_forward", "nll_loss2d_forward"}
_TABLES = {"embedding", "_embedding_bag", "_embedding_bag_forward_only"}


class CheckedIndices(TorchDispatchMode):  # type: ignore[misc]
    """Looks at the indices of each operator. An index outside raises IndexError."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.partition("::")[2].rstrip("_")
        for index, size in _addressed(name, args):
            if index.numel():
                least, most = (int(bound) for bound in index.aminmax())
                if least < -size or most >= size:
                    raise IndexError(f"{name} addresses {least} to {most} of {size} entries")
        return func(*args, **(kwargs or {}))


def _addressed(name: str, args: Any) -> Iterator[tuple[Any, int]]:
    """Yields each index of a call, and how many entries it addresses."""
    if name in _ALONG:
        base, dim, index = args[:3]
        yield index, base.shape[dim] if base.ndim else 1
    elif name in _BY_LIST:
        dim = 0
        for index in args[1]:
            is_mask = index is not None and index.dtype in (torch.bool, torch.uint8)
            if index is not None and not is_mask:
                yield index, args[0].shape[dim]
            dim += index.ndim if is_mask else 1
    elif name in _FLAT:
        yield args[1], args[0].numel()
    elif name in _TABLES:
        yield args[1], args[0].shape[0]
    elif name in _CLASSES:
        scores, target, _, _, ignored = args[:5]
        yield target[target != ignored], scores.shape[0 if scores.ndim == 1 else 1]
