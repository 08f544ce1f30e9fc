"""Prepares what a candidate is compared with: eager and compiled forms of the task, at PyTorch's flags and at a
precision policy.

Every form executes the task's source anew, because TorchDynamo keeps its compiled code by code object: forms of one
module would share guards and recompilation limits. The forms' weights share one storage and are rewritten in place,
which captured graphs and guards survive. Global flags belong to the process, so a form sets its own before it runs.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from cuda_agent.core.assets import word_lists
from cuda_agent.core.baselines import EAGER, Baseline, Form, forms
from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.errors import TaskError
from cuda_agent.core.graph import RANDOM
from cuda_agent.core.records import CompileReport
from cuda_agent.workers.inside.compilations import count_compilations, forget_compilations
from cuda_agent.workers.inside.dispatch import Listener
from cuda_agent.workers.inside.runner import Program
from cuda_agent.workers.inside.task.taskmodule import (
    load_task_module,
    make_init_inputs,
    make_inputs,
    make_model,
    run_forward,
)
from cuda_agent.workspace.descendants import descendants

#: calls of which the quickest shows the host's time for one.
_HOST_CALLS = 3


@dataclass(frozen=True)
class Flags:
    """Global arithmetic flags. The defaults are PyTorch's: TF32 in cuDNN, not in matrix products."""

    matmul_tf32: bool = False
    cudnn_tf32: bool = True
    autocast: str | None = None

    def apply(self) -> None:
        """Sets them for this process."""
        torch.set_float32_matmul_precision("high" if self.matmul_tf32 else "highest")
        torch.backends.cuda.matmul.allow_tf32 = self.matmul_tf32
        torch.backends.cudnn.allow_tf32 = self.cudnn_tf32


POLICY_FLAGS = {
    Precision.FP32: Flags(matmul_tf32=False, cudnn_tf32=False),
    Precision.TF32: Flags(matmul_tf32=True, cudnn_tf32=True),
    Precision.BF16: Flags(matmul_tf32=True, cudnn_tf32=True, autocast="bfloat16"),
    Precision.FP16: Flags(matmul_tf32=True, cudnn_tf32=True, autocast="float16"),
}


@dataclass(frozen=True)
class Planned:
    """A baseline that can be prepared. `matched`: its arithmetic is that of the precision policy."""

    baseline: Baseline
    flags: Flags
    matched: bool

    @property
    def name(self) -> str:
        return self.baseline.name

    @property
    def form(self) -> Form:
        return forms()[self.baseline.form]


@dataclass(frozen=True)
class Products:
    """Whether float32 matrix products and convolutions occur in the task."""

    matmul: bool
    convolution: bool


class FindProducts(Listener):
    """Records operators whose arithmetic the flags change."""

    def __init__(self) -> None:
        super().__init__()
        self.matmul = self.convolution = False

    def note(self, operator: Any, args: Any, result: Any) -> None:
        name, lists = _name(operator), word_lists(__file__)
        if any(isinstance(a, torch.Tensor) and a.dtype is torch.float32 for a in args):
            self.matmul |= name in lists["matmul"]
            self.convolution |= name in lists["convolution"]


class FindRandom(Listener):
    """Records the names of operators that draw random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def note(self, operator: Any, args: Any, result: Any) -> None:
        name = _name(operator)
        if name in RANDOM:
            self.names.add(name)


def _name(operator: Any) -> str:
    return str(operator.name()).removeprefix("aten::").partition(".")[0]


def policy_differs(device: Device, precision: Precision, products: Products) -> bool:
    """Whether the policy's flags change the arithmetic of one of the task's operators."""
    flags, default = POLICY_FLAGS[precision], Flags()
    casts = flags.autocast is not None
    matmul = products.matmul and (casts or flags.matmul_tf32 != default.matmul_tf32)
    convolution = products.convolution and (casts or flags.cudnn_tf32 != default.cudnn_tf32)
    return device is Device.CUDA and (matmul or convolution)


def planned(device: Device, precision: Precision, products: Products, *, autotune: bool = False) -> tuple[Planned, ...]:
    """The baselines of a task, those with constant weights included. Where the policy's flags change nothing, a form
    that is timed at PyTorch's defaults isn't timed at the policy as well."""
    differs = policy_differs(device, precision, products)
    at_policy = POLICY_FLAGS[precision] if differs else Flags()
    able = [form for form in forms().values() if device in form.devices and (autotune or not form.on_request)]
    plain = [Planned(Baseline(form=form.name), Flags(), not differs) for form in able if form.at_defaults]
    return (*plain, *(
        Planned(Baseline(form=form.name, precision=precision), at_policy, True)
        for form in able
        if differs or not form.at_defaults
    ))  # fmt: skip


class BaselineSet:
    """The forms of one task in this process. Raises TaskError where the task fails."""

    def __init__(self, source: str, name: str, device: Device, precision: Precision, *, seed: int = 0) -> None:
        self.device, self.precision = device, precision
        self._source, self._name, self._seed = source, name, seed
        self._owner = self._make_model(EAGER)
        self._sample_task = load_task_module(source, f"{name}_inputs")
        self._sample = make_inputs(self._sample_task, device.value, seed)
        Flags().apply()
        with torch.no_grad(), FindProducts() as found:
            output = run_forward(self._owner_task, self._owner, self._sample)
        self._output_dtypes = [t.dtype for t in torch.utils._pytree.tree_leaves(output) if isinstance(t, torch.Tensor)]
        self.products = Products(found.matmul, found.convolution)
        self._prepared: dict[str, tuple[Planned, Program]] = {}
        #: form -> its compilation.
        self.compilations: dict[str, CompileReport] = {}

    def planned(self, *, autotune: bool = False) -> tuple[Planned, ...]:
        return planned(self.device, self.precision, self.products, autotune=autotune)

    def prepare(self, wanted: Planned, calls: int = 4) -> None:
        """Builds the baseline and calls it on inputs of the right shapes until it is compiled, captured and warm.
        Raises the compiler's or the task's errors. Idempotent."""
        name, compiled = wanted.name, wanted.form.compile is not None
        if name in self._prepared:
            return
        program = self._program(wanted, self._owner if name == EAGER else self._make_model(name))
        wanted.flags.apply()
        sample = self._inputs()
        with torch.no_grad(), _quiet():
            begin = forget_compilations() if compiled else 0.0
            for _ in range(calls if compiled else 1):
                program(*sample)
            if self.device is Device.CUDA:
                torch.cuda.synchronize()
            if compiled:
                self.compilations[name] = count_compilations(begin)
        self._prepared[name] = wanted, program

    def outlasted(self, wanted: Planned, bandwidth: float) -> str:
        """Returns why a captured graph that isn't prepared yet can't be the fastest baseline, or an empty text. A
        replay saves the host's part of the same compiled code, and copies inputs and outputs. `bandwidth` is the
        datasheet's, in bytes/s. A busy host or device makes the graph look better, never worse."""
        replayed = wanted.form.replays
        same = [
            name
            for name, (other, _) in self._prepared.items()
            if other.baseline.form == replayed and other.flags == wanted.flags
        ]
        if self.device is not Device.CUDA or not same:
            return ""
        program, sample = self.program(same[0]), self._inputs()
        host_s = math.inf
        with torch.no_grad():
            for _ in range(_HOST_CALLS):
                torch.cuda.synchronize()
                begin = time.perf_counter()
                output = program(*sample)
                host_s = min(host_s, time.perf_counter() - begin)
        copied = _stored_bytes(sample) + _stored_bytes(output)
        torch.cuda.synchronize()
        copy_s = 2 * copied / bandwidth
        if copy_s <= host_s:
            return ""
        return (
            f"a replay would copy {copied / 2**30:.2f} GiB of inputs and outputs, {copy_s * 1e6:.0f} us at the "
            f"datasheet's bandwidth, to spare the host {host_s * 1e6:.0f} us"
        )

    def program(self, name: str) -> Program:
        """A prepared baseline, with its flags set for this process. Raises KeyError for one that isn't prepared."""
        prepared, program = self._prepared[name]
        prepared.flags.apply()
        return program

    def load_weights(self, state: Mapping[str, Any]) -> None:
        """Writes new weights into every form, in place. Raises TaskError for a name that the model doesn't have."""
        mine = self._owner.state_dict()
        with torch.no_grad():
            for name, value in state.items():
                if name not in mine:
                    raise TaskError(f"the model has no weight {name!r}")
                mine[name].copy_(value)

    def retire(self, name: str) -> None:
        """Drops a form. With the last captured one, the pool of their graphs goes too."""
        gone, _ = self._prepared.pop(name, (None, None))
        captured = gone is not None and gone.form.captured and self.device is Device.CUDA
        if captured and not any(other.form.captured for other, _ in self._prepared.values()):
            from torch._inductor.cudagraph_trees import reset_cudagraph_trees

            reset_cudagraph_trees()

    def drop_sample(self) -> None:
        """Frees the inputs that `prepare` uses. They are made again when needed."""
        self._sample = []

    def _inputs(self) -> list[Any]:
        return self._sample or make_inputs(self._sample_task, self.device.value, self._seed)

    def _make_model(self, form: str) -> Any:
        task = load_task_module(self._source, f"{self._name}_{form}")
        init = make_init_inputs(task, self._seed)
        # Every form except eager gets eager's weights.
        model = make_model(task, init, self.device.value, self._seed, on_device=form != EAGER)
        if form == EAGER:
            self._owner_task = task
        else:
            _share_weights(self._owner, model)
        return model.requires_grad_(False)

    def _program(self, wanted: Planned, model: Any) -> Program:
        if wanted.flags.autocast:
            model = _Autocast(model, self.device.value, getattr(torch, wanted.flags.autocast), self._output_dtypes)
        if wanted.form.compile is None:
            return model  # type: ignore[no-any-return]
        compiled: Program = torch.compile(model, **wanted.form.compile)
        captured = wanted.form.captured and self.device is Device.CUDA
        return _fresh_outputs(compiled) if captured else compiled


def _stored_bytes(value: Any) -> int:
    """Returns the stored bytes of the tensors in a value. Expanded elements count once."""
    leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    stored = (
        math.prod(size for size, stride in zip(leaf.shape, leaf.stride(), strict=True) if stride) for leaf in leaves
    )
    return sum(count * leaf.element_size() for count, leaf in zip(stored, leaves, strict=True))


class _Autocast(torch.nn.Module):  # type: ignore[misc]
    """Runs the module under autocast, with outputs in the types that the task returns."""

    def __init__(self, model: Any, device: str, dtype: Any, output_dtypes: list[Any]) -> None:
        super().__init__()
        self.model, self.device, self.dtype, self.output_dtypes = model, device, dtype, output_dtypes

    def forward(self, *inputs: Any) -> Any:
        with torch.autocast(self.device, dtype=self.dtype):
            value = self.model(*inputs)
        if isinstance(value, torch.Tensor):
            return value.to(self.output_dtypes[0])
        leaves, spec = torch.utils._pytree.tree_flatten(value)
        wanted = iter(self.output_dtypes)
        leaves = [leaf.to(next(wanted)) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        return torch.utils._pytree.tree_unflatten(leaves, spec)


def _fresh_outputs(compiled: Program) -> Program:
    """Copies a captured graph's outputs, which the next replay overwrites, inside the timed call, as a candidate must
    do."""

    def program(*inputs: Any) -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        value = compiled(*inputs)
        if isinstance(value, torch.Tensor):
            return value.clone()
        return torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, value)

    return program


def _share_weights(owner: Any, other: Any) -> None:
    """Moves `other`'s parameters and buffers into `owner`'s storage, so that forms take no memory of their own."""
    theirs = {**dict(other.named_parameters()), **dict(other.named_buffers())}
    for name, mine in {**dict(owner.named_parameters()), **dict(owner.named_buffers())}.items():
        twin = theirs.get(name)
        if twin is not None and twin.shape == mine.shape and twin.dtype == mine.dtype:
            twin.data = mine.data


@contextlib.contextmanager
def _quiet() -> Any:
    """Suppresses compilers' warnings, which don't help the judge's user."""
    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(previous)


def stop_compiler_processes() -> None:
    """Ends Inductor's pool of compilers, which would hold memory and time slices while programs are timed. It doesn't
    ask the pool, which answers only when its own start is done, seconds after the last kernel came from the cache."""
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    if "torch._inductor.async_compile" not in sys.modules:
        return
    with contextlib.suppress(ImportError, AttributeError):
        from torch._inductor.async_compile import shutdown_compile_workers

        shutdown_compile_workers()
