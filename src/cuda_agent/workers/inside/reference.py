"""The reference worker's role: inputs and weights from the judge's seeds, the task's answers, the oracle's, and the
graph.

It runs task code, which isn't trusted either. Its errors become a TaskError's cause and remedy.
"""

from __future__ import annotations

import contextlib
import gc
import random as python_random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from cuda_agent.core.enums import OracleWay
from cuda_agent.core.errors import TaskError
from cuda_agent.workers.buffers import synchronize
from cuda_agent.workers.inside.baselines import FindProducts, FindRandom, Flags, Products, policy_differs
from cuda_agent.workers.inside.graph.capture import capture, warm_up
from cuda_agent.workers.inside.imports import importing
from cuda_agent.workers.inside.main import Context
from cuda_agent.workers.inside.task.answers import HeldAnswer, Parts, is_consecutive, on_the_host
from cuda_agent.workers.inside.task.estimate import estimated_bytes
from cuda_agent.workers.inside.task.indices import CheckedIndices
from cuda_agent.workers.inside.task.oracle import Draws, Oracle, precision_context, run_float64, run_on_host
from cuda_agent.workers.inside.task.pytree import flatten, tensor_meta, unflatten
from cuda_agent.workers.inside.task.scaling import scale_weights
from cuda_agent.workers.inside.task.slices import WHOLE, Slicing, find_slices
from cuda_agent.workers.inside.task.taskmemory import free_cache, most_held, reserved_memory
from cuda_agent.workers.inside.task.taskmodule import (
    load_task_module,
    make_init_inputs,
    make_inputs,
    make_model,
    run_forward,
    seed_torch,
    task_code,
    unload_task_module,
)
from cuda_agent.workers.inside.task.variants import WIDE, Facts, properties, usual_kinds, vary
from cuda_agent.workers.inside.task.weights import changed_names, redraw, state_metas, state_versions
from cuda_agent.workers.requests import Done, FreeMemory, HeldMemory, Operations, Spec, TensorRefs, operations_of
from cuda_agent.workers.requests import reference as requests

#: how much longer a call may take on the host in float64 than on the device, and the seconds that it may take there.
_HOST_TIMES, _HOST_S = 300.0, 30.0


def create(context: Context) -> Operations:
    reference = LoadedReference(context)
    return operations_of(
        estimate_call, reference.load, reference.draw_inputs, reference.draw_weights, reference.compute,
        reference.take, reference.import_capture, reference.capture, reference.free,
    )  # fmt: skip


def estimate_call(request: requests.EstimateCall) -> requests.CallEstimate:
    """Also imports what the task imports. What fails here shows when the task is loaded."""
    found = requests.CallEstimate()
    with importing(), contextlib.suppress(Exception):
        task = load_task_module(request.source, f"{request.name}_estimate")
        try:
            inputs, outputs, rest = estimated_bytes(task)
            found = requests.CallEstimate(inputs=inputs, outputs=outputs, rest=rest)
        finally:
            unload_task_module(task)
    return found


class LoadedReference:
    """One task in this process."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._metas: list[dict[str, Any]] = []
        self._facts: list[Facts] | None = None
        #: whether the cache of device memory holds what the oracle needs.
        self._is_wide = False
        #: whether answers are too large for their memory to be kept, and are computed slice by slice where that is
        #: possible.
        self._is_large = False
        #: the inputs are a variant, so that integers needn't fit together.
        self._is_varied = False
        self._slices: Slicing | None = None
        self._has_convolution = False
        #: shapes of the outputs.
        self._outputs: list[Any] = []
        self._held: HeldAnswer | None = None
        #: precisions of the oracle's slices, and the seconds of eager's last call.
        self._precisions: set[str] = set()
        self._eager_s = 0.0
        self._seeded = False
        self._rng = 0

    @property
    def _device(self) -> str:
        return self._context.device.value

    def load(self, request: requests.LoadTask) -> requests.TaskSpec:
        seed = request.seed
        self._task = load_task_module(request.source, request.name)
        init = make_init_inputs(self._task, seed)
        self._init = init
        init_spec, init_tensors = flatten({"args": list(init.args), "kwargs": init.kwargs})
        if init_tensors:
            raise TaskError(
                f"{request.name}: get_init_inputs() returns a tensor", "Return numbers, text and lists of them"
            )
        self._model = make_model(self._task, init, self._device, seed)
        inputs = make_inputs(self._task, self._device, seed + 1)
        spec, tensors = flatten(inputs)
        self._metas = [_shape_and_type(t) for t in tensors]
        before, versions = [t.clone() for t in tensors], state_versions(self._model)
        Flags().apply()
        self._rng = seed
        self._reseed()
        forward = partial(run_forward, self._task, self._model, inputs)
        with most_held(self._context.device) as held, FindProducts() as found, FindRandom() as random:
            output = forward()
        self._seeded = bool(random.names)
        output_spec, outputs = flatten(output)
        mutated = tuple(i for i, (a, b) in enumerate(zip(before, tensors, strict=True)) if not _same(a, b))
        products = Products(found.matmul, found.convolution)
        peak = max(0, sum(held) - sum(t.numel() * t.element_size() for t in before))
        call_bytes = max(peak, sum(t.numel() * t.element_size() for t in (*before, *outputs)))
        self._is_large = call_bytes >= request.large_bytes
        self._has_convolution = found.convolution
        self._outputs = [t.shape for t in outputs]
        return requests.TaskSpec(
            init=init_spec,
            inputs_spec=spec,
            inputs=tuple(map(tensor_meta, tensors)),
            state=state_metas(self._model),
            outputs_spec=output_spec,
            outputs=tuple(map(tensor_meta, outputs)),
            mutated=mutated,
            changed=changed_names(versions, self._model),
            products=found.matmul or found.convolution,
            policy_differs=policy_differs(self._context.device, request.precision, products),
            random=tuple(sorted(random.names)),
            variants=usual_kinds(outputs),
            wide_variants=tuple(WIDE),
            peak_bytes=peak,
            large=self._is_large,
        )

    def draw_inputs(self, request: requests.DrawInputs) -> requests.DrawnInputs:
        self._held, specs, self._is_varied = None, [], request.variant is not None
        for seed, into in zip(request.seeds, request.into, strict=True):
            spec, tensors = self._drawn(seed)
            if [_shape_and_type(t) for t in tensors] != self._metas:
                raise TaskError(
                    f"{self._task.name}: get_inputs() returns other shapes or types at each call", "Make them constant"
                )
            self._fill(into, tensors)
            del tensors
            self._give_back()
            specs.append(spec)
            if request.variant is not None:
                places, again = self._context.tensors(into), partial(self._drawn_tensors, seed)
                changed = vary(request.variant, places, self._kept(seed), seed, again)
                self._give_back()
                if not changed.is_changed:
                    return requests.DrawnInputs(dropped="; ".join(changed.reasons)[:500])
        return requests.DrawnInputs(specs=tuple(specs))

    def draw_weights(self, request: requests.DrawWeights) -> Done:
        self._held = None
        if request.seed is not None:
            redraw(self._model, request.seed)
            if request.scaled:
                self._scale(request.seed)
        self._fill(request.into, list(self._state().values()))
        return Done()

    def _scale(self, seed: int) -> None:
        # What fails here fails in the answer too, or comes from the scaling alone.
        with contextlib.suppress(TaskError):
            inputs = partial(make_inputs, self._task, self._device, seed)
            scale_weights(self._model, lambda: run_forward(self._task, self._model, inputs()))
        self._give_back()

    def compute(self, request: requests.ComputeAnswer) -> requests.Answered:
        """Computes eager's answer. Unless it is large, its device memory is kept for the next ones until `free`."""
        self._held = None
        tensors, spec = self._context.tensors(request.inputs), request.spec
        self._rng = request.rng
        draws = Draws()
        Flags().apply()
        begin, own = time.perf_counter(), self._model
        if request.twin is not None:
            self._model = self._twin(request.twin)
        is_strange = self._is_varied and any(not tensor.is_floating_point() for tensor in tensors)
        try:
            with (
                draws if self._seeded and request.oracle else contextlib.nullcontext(),
                CheckedIndices() if is_strange and self._device != "cpu" else contextlib.nullcontext(),
            ):
                output_spec, eager = self._answer(spec, tensors)
        finally:
            self._model = own
        synchronize(self._context.device)
        self._eager_s = time.perf_counter() - begin

        def policy() -> list[Any]:
            with precision_context(request.precision, self._device):
                return self._answer(spec, tensors)[1]

        self._held = HeldAnswer(eager, policy, partial(self._oracle, spec, tensors, draws.drawn))
        del eager
        self._give_back()
        return requests.Answered(spec=output_spec)

    def take(self, request: requests.TakePiece) -> requests.TakenPiece:
        """Copies a piece of the answers."""
        held, tensors = self._held, self._context.tensors
        assert held is not None
        eager = tensors(request.eager)
        policy = None if request.policy is None else tensors(request.policy)
        if request.oracle is None:
            held.fill(request.begins, eager, policy, None)
            return requests.TakenPiece()
        # Its tensors are larger: no block of what was drawn and answered so far is large enough, but all later
        # tensors fit into its blocks.
        before = 0 if self._is_wide else free_cache(self._context.device)
        is_whole = held.fill(request.begins, eager, policy, tensors(request.oracle))
        taken = 0 if self._is_wide else max(0, reserved_memory(self._context.device) - before)
        self._is_wide = True
        way = held.parts.way
        if is_whole and not self._is_large:  # nothing asks for it again
            self._held = None
            del held
            gc.collect()
            self._give_back()
        precision = next((name for name in ("native", "float32") if name in self._precisions), "float64")
        return requests.TakenPiece(oracle=precision, way=way, oracle_bytes=taken)

    def _give_back(self) -> None:
        """Frees memory that nothing uses, of a large task."""
        if self._is_large:
            free_cache(self._context.device)
            self._is_wide = False

    def import_capture(self, _request: requests.ImportCapture) -> Done:
        with importing():
            warm_up()
        return Done()

    def capture(self, request: requests.CaptureGraph) -> requests.CapturedGraph:
        # An export imports the half of the compiler where that wasn't asked for before.
        with importing():
            graph = capture(self._model, make_inputs(self._task, self._device, request.seed), self._task)
        self._give_back()
        return requests.CapturedGraph(graph=graph.model_dump_json())

    def free(self, _request: FreeMemory) -> HeldMemory:
        """Frees device memory. Reference, verification and timing hold it in turn."""
        self._held = None
        gc.collect()
        self._is_wide = False
        return HeldMemory(held_bytes=free_cache(self._context.device))

    def _drawn(self, seed: int) -> tuple[Spec, list[Any]]:
        return flatten(make_inputs(self._task, self._device, seed))

    def _drawn_tensors(self, seed: int) -> list[Any]:
        return self._drawn(seed)[1]

    def _kept(self, seed: int) -> list[Facts]:
        """Returns the properties of every tensor that hold in three draws."""
        if self._facts is None:
            draws = (self._drawn_tensors(seed + 1 + i) for i in range(3))
            self._facts = properties(draws)
        return self._facts

    def _reseed(self) -> None:
        """Seeds torch's generators as requested. Python's and NumPy's never repeat, so that a `forward` that draws from
        them gives another answer each time."""
        seed_torch(self._rng)
        python_random.seed()
        np.random.seed()

    def _forward(self, spec: Spec, tensors: list[Any]) -> tuple[Spec, list[Any]]:
        inputs = unflatten(spec, tensors)
        self._reseed()
        return flatten(run_forward(self._task, self._model, inputs))

    def _twin(self, seed: int) -> Any:
        """Returns another instance, constructed under another seed, with the same state dict."""
        model = make_model(self._task, self._init, self._device, seed)
        model.load_state_dict(self._model.state_dict())
        return model

    def _state(self) -> dict[str, Any]:
        return {n: t for n, t in self._model.state_dict().items() if isinstance(t, torch.Tensor)}

    def _fill(self, into: TensorRefs, tensors: list[Any]) -> None:
        with torch.no_grad():
            for place, tensor in zip(self._context.tensors(into), tensors, strict=True):
                place.copy_(tensor)

    def _answer(self, spec: Spec, tensors: list[Any]) -> tuple[Spec, list[Any]]:
        output_spec, outputs = self._forward(spec, tensors)
        if [tensor.shape for tensor in outputs] != self._outputs:
            raise TaskError(
                f"{self._task.name}: forward's output changes its shape with the values", "Make it constant"
            )
        return output_spec, outputs

    def _oracle(self, spec: Spec, tensors: list[Any], drawn: list[Any], eager: list[Any]) -> Parts:
        """Returns the oracle's answer. One that isn't made slice by slice is made now."""

        def answered(inputs: list[Any], evaluate: Callable[..., Oracle | None] = run_float64) -> list[Any] | None:
            arguments = unflatten(spec, inputs)
            self._reseed()
            with task_code(self._task, "Model.forward in float64"):
                oracle = evaluate(self._model, arguments, drawn)
            if oracle is None:
                return None
            self._precisions.add(oracle.precision)
            return flatten(oracle.value)[1]

        def exact(inputs: list[Any]) -> list[Any]:
            found = answered(inputs)
            assert found is not None
            return found

        def plain(inputs: list[Any]) -> list[Any]:
            return self._forward(spec, inputs)[1]

        if self._slices is None:
            can_cut = self._is_large and not self._seeded
            self._slices = find_slices(tensors, eager, plain, exact) if can_cut else WHOLE
        slicing = self._slices
        self._precisions.clear()

        def make(begin: int, length: int) -> list[Any]:
            with torch.no_grad():
                return exact(slicing.inputs(tensors, begin, length))

        if not self._is_large or (slicing is not WHOLE and is_consecutive(slicing, eager)):
            way = OracleWay.SLICES if self._is_large else OracleWay.WHOLE
            return Parts(way, slicing, make, eager)
        # Nothing of this answer stays on the device.
        way, whole = OracleWay.HOST, None
        short = _HOST_TIMES * self._eager_s <= _HOST_S and not self._has_convolution
        if slicing is WHOLE and short and self._device != "cpu":
            whole = answered(tensors, run_on_host)
        if whole is None:
            way, whole = OracleWay.HELD, on_the_host(slicing, make, eager)
        self._give_back()
        return Parts(way, WHOLE, lambda _begin, _length: whole, eager)


def _shape_and_type(tensor: Any) -> dict[str, Any]:
    return {"shape": tuple(tensor.shape), "dtype": str(tensor.dtype)}


def _same(a: Any, b: Any) -> bool:
    """Whether values are equal, where NaN equals NaN."""
    return bool(torch.equal(a, b) or ((a == b) | ((a != a) & (b != b))).all())
