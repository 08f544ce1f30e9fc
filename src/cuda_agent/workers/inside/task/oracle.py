"""Runs the oracle, which is the reference in float64, and eager at a precision policy.

`Module.double()` is no oracle: an RMS norm that casts to float32 inside stays float32. So a dispatch mode widens every
floating tensor and every dtype argument at the dispatcher, below all of the module's own code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from cuda_agent.core.enums import Precision
from cuda_agent.core.errors import TaskError
from cuda_agent.core.graph import DRAWS, base_name
from cuda_agent.workers.inside.dispatch import Listener

#: evaluations of which an oracle below float64 is the mean.
_EVALUATIONS = 4
_NARROW = {
    torch.float64: (torch.float16, torch.bfloat16, torch.float32),
    torch.float32: (torch.float16, torch.bfloat16),
}
_COMPLEX = {torch.complex32: torch.complex128, torch.complex64: torch.complex128}


@dataclass(frozen=True)
class Oracle:
    """`value` holds the outputs, floating ones in `precision`: `float64`, or `float32` where an operator would not
    widen, or `native` where not even that was possible. Below float64 they are means of several evaluations, which are
    rounded at random. `reason` says why it isn't float64."""

    value: Any
    precision: str
    reason: str = ""


class Draws(Listener):
    """Keeps the random numbers that the calls under this mode draw, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[Any] = []

    def note(self, operator: Any, args: Any, result: Any) -> None:
        if _draws(operator):
            self.drawn.append(result.clone())


def _draws(operator: Any) -> bool:
    return base_name(str(operator)) in DRAWS


def run_float64(model: Any, inputs: list[Any], drawn: Sequence[Any] = ()) -> Oracle:
    """Runs `model(*inputs)` in float64 on their device. Neither changes, and integers stay integers. `drawn` are the
    random numbers that `forward` draws, in order, since a generator draws others in float64.

    Where an operator can't be widened, or float64 doesn't fit in memory, it runs in float32 by the same means, without
    TF32. Eager's distance to the mean of evaluations is then the spread of its rounding errors. Raises the model's
    exception when it fails in its own precision too.
    """
    reason = ""
    for target in (torch.float64, torch.float32):
        try:
            value, narrow = _run_widened(model, inputs, target, drawn)
        except Exception as error:  # noqa: BLE001 - task code; an operator without a float64 kernel raises anything
            reason = reason or " ".join(f"{type(error).__name__}: {error}".split())[:200]
            continue
        if not narrow and target is torch.float64:
            return Oracle(value, "float64")
        if target is torch.float32:
            mean = _mean_of_rounded(value, lambda: _run_widened(model, inputs, torch.float32, drawn)[0])
            return Oracle(mean, "float32", reason)
        reason = f"not widened: {', '.join(sorted(narrow)[:5])}"
    again = partial(eager_at_precision, model, inputs, Precision.FP32)
    value = again()
    # Without the drawn numbers each evaluation would draw its own.
    return Oracle(value if drawn else _mean_of_rounded(value, again), "native", reason)


def run_on_host(model: Any, inputs: list[Any], drawn: Sequence[Any] = ()) -> Oracle | None:
    """Runs like `run_float64`, on the host. Returns None where that isn't possible in float64."""
    try:
        value, narrow = _run_widened(model, inputs, torch.float64, [t.cpu() for t in drawn], device="cpu")
    except Exception:  # noqa: BLE001 - task code, on a device that it doesn't expect
        return None
    return None if narrow else Oracle(value, "float64")


def _mean_of_rounded(value: Any, again: Callable[[], Any]) -> Any:
    """Returns the value with the mean of several randomly rounded evaluations, in float64, for each floating tensor."""

    def is_floating(leaf: Any) -> bool:
        return isinstance(leaf, torch.Tensor) and leaf.is_floating_point()

    def floating(values: Any) -> list[Any]:
        return [leaf.double() for leaf in torch.utils._pytree.tree_leaves(values) if is_floating(leaf)]

    sums = [torch.zeros_like(leaf) for leaf in floating(value)]
    with torch.no_grad():
        for seed in range(_EVALUATIONS):
            with _RandomRounding(seed):
                rounded = again()
            for total, leaf in zip(sums, floating(rounded), strict=True):
                total += leaf / _EVALUATIONS
    means = iter(sums)
    return tree_map(lambda leaf: next(means) if is_floating(leaf) else leaf, value)


def _run_widened(
    model: Any, inputs: list[Any], target: Any, drawn: Sequence[Any], *, device: str | None = None
) -> tuple[Any, set[str]]:
    """Returns (outputs, names of the operators that returned or changed a type narrower than `target`). `device`
    replaces that of model and inputs."""

    def widen(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        wide = _wide_dtype(value.dtype, target) or value.dtype
        return value.detach().to(device or value.device, wide, copy=True)

    mode = _Widening(target, drawn)
    before = torch.get_default_dtype()
    mha = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(precision_flags(Precision.FP32))
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.callback(torch.set_default_dtype, before)
        stack.callback(torch.backends.mha.set_fastpath_enabled, mha)
        torch.set_default_dtype(target)
        torch.backends.mha.set_fastpath_enabled(False)
        state = {name: widen(t) for name, t in (*model.named_parameters(), *model.named_buffers())}
        arguments = tree_map(widen, inputs)
        with mode:
            value = torch.func.functional_call(model, state, tuple(arguments), tie_weights=True)
    return value, mode.narrow


def _wide_dtype(dtype: Any, target: Any) -> Any | None:
    """Returns the wide form of a narrower dtype, or None for a dtype that stays."""
    if dtype in _NARROW[target]:
        return target
    return _COMPLEX.get(dtype) if target is torch.float64 else None


class _RandomRounding(Listener):
    """Changes each new floating result by up to one unit in its last place at random, as sums in another order would
    (Monte Carlo arithmetic, Parker 1997)."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed
        self._generators: dict[Any, Any] = {}

    def note(self, operator: Any, args: Any, result: Any) -> None:
        if any(returned.alias_info is not None for returned in operator._schema.returns):
            return
        for leaf in torch.utils._pytree.tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
                if leaf.device not in self._generators:
                    self._generators[leaf.device] = torch.Generator(leaf.device).manual_seed(self._seed)
                signs = torch.empty_like(leaf).uniform_(-1, 1, generator=self._generators[leaf.device])
                leaf.addcmul_(leaf, signs, value=torch.finfo(leaf.dtype).eps)


class _Widening(TorchDispatchMode):  # type: ignore[misc]
    """Widens tensor and dtype arguments of every operator. Records in `narrow` the operators that stay narrow."""

    def __init__(self, target: Any, drawn: Sequence[Any]) -> None:
        super().__init__()
        self.target = target
        self._drawn = iter(drawn)
        self.narrow: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        widened = False

        def widen(value: Any) -> Any:
            nonlocal widened
            if isinstance(value, torch.Tensor):
                wide = _wide_dtype(value.dtype, self.target)
                if wide is not None:
                    widened = True
                    return value.to(wide)
            elif isinstance(value, torch.dtype):
                return _wide_dtype(value, self.target) or value
            return value

        args, kwargs = tree_map(widen, args), tree_map(widen, kwargs or {})
        if widened and func._schema.is_mutable:
            # The operator writes into a widened copy, and the change is lost.
            self.narrow.add(str(func))
        if func is torch.ops.aten.view.dtype:
            self.narrow.add(str(func))
        result = self._drawn_again(func, args) if _draws(func) else func(*args, **kwargs)
        tree_map(lambda value: self._note(value, func), result)
        return result

    def _drawn_again(self, func: Any, args: Any) -> Any:
        drawn = next(self._drawn)
        wide = drawn.to(_wide_dtype(drawn.dtype, self.target) or drawn.dtype)
        return args[0].copy_(wide) if func._schema.is_mutable else wide.clone()

    def _note(self, value: Any, func: Any) -> None:
        if isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex()):
            narrow_float = value.is_floating_point() and value.dtype.itemsize < self.target.itemsize
            if narrow_float or _wide_dtype(value.dtype, self.target) is not None:
                self.narrow.add(str(func))


@contextmanager
def precision_flags(precision: Precision) -> Iterator[None]:
    """Sets PyTorch's global flags to a precision policy, and restores them after the block. `fp32` turns TF32 off
    everywhere, cuDNN's too; the other policies turn it on."""
    matmul, cudnn = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    try:
        torch.backends.cuda.matmul.allow_tf32 = precision is not Precision.FP32
        torch.backends.cudnn.allow_tf32 = precision is not Precision.FP32
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = matmul
        torch.backends.cudnn.allow_tf32 = cudnn


@contextmanager
def precision_context(precision: Precision, device: str) -> Iterator[None]:
    """Sets `precision_flags`, and autocast for `bf16` and `fp16`."""
    narrow = {Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}.get(precision)
    with ExitStack() as stack:
        stack.enter_context(precision_flags(precision))
        if narrow is not None:
            stack.enter_context(torch.autocast(torch.device(device).type, dtype=narrow))
        yield


def eager_at_precision(model: Any, inputs: list[Any], precision: Precision, device: str | None = None) -> Any:
    """Runs `model(*inputs)` in eager mode at a precision policy, without gradients, and restores the flags. `device`
    defaults to that of the first tensor. Raises TaskError where there is no tensor, and the model's own exceptions."""
    if device is None:
        tensors = [t for t in torch.utils._pytree.tree_leaves(inputs) if isinstance(t, torch.Tensor)]
        if not tensors:
            raise TaskError("the inputs hold no tensor", "Return at least one from get_inputs()")
        device = str(tensors[0].device)
    with torch.no_grad(), precision_context(precision, device):
        return model(*inputs)
