"""Scales weights so that the signal of the inputs survives to the output.

At PyTorch's default initialisation the signal fades from layer to layer, and after some dozens of layers rounding hides
it. Then the answer to other inputs would pass for the answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_WITH_BIAS = {
    torch.nn.functional.linear, torch.conv1d, torch.conv2d, torch.conv3d,
    torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d,
}  # fmt: skip
_PRODUCTS = {
    torch.matmul, torch.mm, torch.bmm, torch.einsum, torch.functional.einsum,
    torch.Tensor.matmul, torch.Tensor.mm, torch.Tensor.bmm, torch.Tensor.__matmul__, torch.Tensor.__rmatmul__,
}  # fmt: skip


def scale_weights(model: Any, forward: Callable[[], object]) -> None:
    """Runs `forward` once and scales on the way, in place, the weights of each linear layer, convolution and product
    with a parameter, so that its result without the bias has a root mean square of 1. A batch norm's running variance
    becomes the mean square of what it normalises, and its running mean as many times larger.

    This is layer-sequential unit-variance initialisation (Mishkin and Matas 2016) without its orthogonal start. Weights
    that meet zeros only, that are used again, or that are derived in `forward` stay. Raises what `forward` raises.
    """
    with torch.no_grad(), _Scaling(model):
        forward()


class _Scaling(TorchFunctionMode):  # type: ignore[misc]
    def __init__(self, model: Any) -> None:
        super().__init__()
        self._own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        self._own |= {buffer.untyped_storage().data_ptr() for buffer in model.buffers()}
        #: addresses of the weights and running variances that were scaled.
        self._done: set[int] = set()

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _WITH_BIAS and len(args) >= 2:
            bare = (*args[:2], None, *args[3:])
            self._scale(args[1], lambda: func(*bare, **{**kwargs, "bias": None} if "bias" in kwargs else kwargs))
        elif func in _PRODUCTS:
            tensors = [arg for arg in torch.utils._pytree.tree_leaves(args) if isinstance(arg, torch.Tensor)]
            weights = [tensor for tensor in tensors if self._is_own(tensor)]
            if len(weights) == 1 < len(tensors):
                self._scale(weights[0], lambda: func(*args, **kwargs))
        elif func is torch.nn.functional.batch_norm:
            self._normalise(*args[:3], **{k: kwargs[k] for k in ("running_mean", "running_var") if k in kwargs})
        return func(*args, **kwargs)

    def _is_own(self, tensor: Any) -> bool:
        return tensor.is_floating_point() and tensor.untyped_storage().data_ptr() in self._own

    def _is_new(self, tensor: Any) -> bool:
        """Whether it is the model's and meets the first operator that may scale it."""
        if tensor.data_ptr() in self._done or not self._is_own(tensor):
            return False
        self._done.add(tensor.data_ptr())
        return True

    def _scale(self, weight: Any, result: Callable[[], Any]) -> None:
        if not self._is_new(weight):
            return
        size = _root_mean_square(result())
        if 0.0 < size < math.inf:
            weight.div_(size)

    def _normalise(self, values: Any, running_mean: Any = None, running_var: Any = None) -> None:
        if running_var is None or not self._is_new(running_var):
            return
        axes = [axis for axis in range(values.dim()) if axis != 1]
        squares = values.float().square().mean(axes)
        mean = squares.mean()
        if not 0.0 < float(mean) < math.inf:
            return
        # A channel that is nearly silent isn't made as loud as the others.
        running_var.copy_(squares.clamp_min_(mean / 4))
        running_mean.mul_(mean.sqrt())


def _root_mean_square(values: Any) -> float:
    return float(torch.linalg.vector_norm(values, dtype=torch.float32)) / math.sqrt(max(1, values.numel()))
