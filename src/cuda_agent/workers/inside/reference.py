"""The reference worker's role: inputs and weights from the judge's seeds, the task's own answers, the oracle's, the
graph.

Runs task code, which isn't trusted either: whatever it raises leaves as a TaskError's cause and remedy.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from cuda_agent.core.enums import Precision
from cuda_agent.core.errors import TaskError
from cuda_agent.workers.inside.baselines import Flags, Products, _FindProducts, policy_differs
from cuda_agent.workers.inside.graph.capture import capture, warm_up
from cuda_agent.workers.inside.main import Context, Operation
from cuda_agent.workers.inside.task.oracle import precision_context, run_float64
from cuda_agent.workers.inside.task.pytree import flatten, tensor_meta, unflatten
from cuda_agent.workers.inside.task.taskmemory import free_cache, most_held
from cuda_agent.workers.inside.task.taskmodule import (
    import_task,
    load_task_module,
    make_init_inputs,
    make_inputs,
    make_model,
    run_forward,
    seed_everything,
    task_code,
)
from cuda_agent.workers.inside.task.variants import KINDS, WIDE, Facts, properties, variant
from cuda_agent.workers.inside.task.weights import redraw


def create(context: Context) -> Mapping[str, Operation]:
    reference = Reference(context)
    return {
        "load": reference.load,
        "draw_inputs": reference.draw_inputs,
        "draw_slots": reference.draw_slots,
        "draw_weights": reference.draw_weights,
        "expected": reference.expected,
        "import_capture": reference.import_capture,
        "import_task": import_task,
        "capture": reference.capture,
        "free": reference.free,
    }


class Reference:
    """One task in this process."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._metas: list[dict[str, Any]] = []
        self._mutated: tuple[int, ...] = ()
        self._facts: list[Facts] | None = None
        #: the cache of the device's memory holds what the oracle needs.
        self._is_wide = False

    @property
    def _device(self) -> str:
        return self._context.device.value

    def load(self, params: dict[str, Any]) -> dict[str, Any]:
        """Executes the task once and says what crosses: specs and metas of inputs, weights and outputs."""
        seed = params["seed"]
        self._task = load_task_module(params["source"], params["name"])
        init = make_init_inputs(self._task, seed)
        self._init = init
        init_spec, init_tensors = flatten({"args": list(init.args), "kwargs": init.kwargs})
        if init_tensors:
            raise TaskError(
                f"{params['name']}: get_init_inputs() returns a tensor", "Return numbers, text and lists of them"
            )
        self._model = make_model(self._task, init, self._device, seed)
        inputs = make_inputs(self._task, self._device, seed + 1)
        spec, tensors = flatten(inputs)
        self._metas = [_shape_and_type(t) for t in tensors]
        before = [t.clone() for t in tensors]
        Flags().apply()
        seed_everything(seed)
        forward = partial(run_forward, self._task, self._model, inputs)
        with most_held(self._context.device) as held, _FindProducts() as found:
            output = forward()
        output_spec, outputs = flatten(output)
        self._mutated = tuple(i for i, (a, b) in enumerate(zip(before, tensors, strict=True)) if not _same(a, b))
        products = Products(found.matmul, found.convolution)
        return {
            "init": init_spec,
            "inputs_spec": spec,
            "inputs": [tensor_meta(t).model_dump(mode="json") for t in tensors],
            "state": {n: tensor_meta(t).model_dump(mode="json") for n, t in self._state().items()},
            "outputs_spec": output_spec,
            "outputs": [tensor_meta(t).model_dump(mode="json") for t in outputs],
            "mutated": list(self._mutated),
            "products": found.matmul or found.convolution,
            "policy_differs": policy_differs(self._context.device, Precision(params["precision"]), products),
            "variants": list(KINDS),
            "wide_variants": list(WIDE),
            "peak_bytes": max(0, sum(held) - sum(t.numel() * t.element_size() for t in before)),
        }

    def draw_inputs(self, params: dict[str, Any]) -> dict[str, Any]:
        """Fresh inputs under `seed` into an arena. `dropped` says why a variant doesn't apply; nothing is written
        then."""
        spec, tensors = flatten(make_inputs(self._task, self._device, params["seed"]))
        kind = params.get("variant")
        if kind is not None:
            changed = variant(kind, tensors, self._kept(params["seed"]), params["seed"])
            if changed.tensors is None:
                return {"spec": {}, "dropped": "; ".join(changed.reasons)[:500]}
            tensors = changed.tensors
        if [_shape_and_type(t) for t in tensors] != self._metas:
            raise TaskError(
                f"{self._task.name}: get_inputs() returns other shapes or types at each call", "Make them constant"
            )
        self._fill(params, tensors)
        return {"spec": spec, "dropped": None}

    def draw_slots(self, params: dict[str, Any]) -> dict[str, Any]:
        """`draw_inputs` for several places of one arena."""
        pairs = zip(params["seeds"], params["layouts"], strict=True)
        drawn = [self.draw_inputs({"seed": s, "arena": params["arena"], "layout": layout}) for s, layout in pairs]
        return {"specs": [one["spec"] for one in drawn]}

    def draw_weights(self, params: dict[str, Any]) -> dict[str, Any]:
        """Weights under `seed` (None: as they are) into an arena, in the order of the state dict."""
        if params["seed"] is not None:
            redraw(self._model, params["seed"])
        self._fill(params, list(self._state().values()))
        return {}

    def expected(self, params: dict[str, Any]) -> dict[str, Any]:
        """Answers to the inputs in an arena: `eager` at PyTorch's flags, `policy` at the precision policy's,
        `oracle`. What they needed of the device's memory is kept for the next ones, until `free`."""
        given = params["inputs"]
        tensors = self._context.tensors(given["arena"], given["layout"])
        wanted = params["outputs"]
        seed_everything(params["rng"])
        Flags().apply()
        own = self._model
        if params["twin"] is not None:
            self._model = self._twin(params["twin"])
        try:
            output_spec = self._answer(given["spec"], tensors, wanted["eager"])
        finally:
            self._model = own
        if "policy" in wanted:
            self._policy_answer(given["spec"], tensors, wanted["policy"], Precision(params["precision"]))
        oracle = ""
        if "oracle" in wanted:
            if not self._is_wide:
                # Its tensors are larger: what was drawn and answered so far has no block that would do, but all that
                # comes later fits into its blocks.
                free_cache(self._context.device)
                self._is_wide = True
            oracle = self._oracle_answer(given["spec"], tensors, wanted["oracle"])
        gc.collect()
        return {"spec": output_spec, "oracle": oracle}

    def import_capture(self, _params: dict[str, Any]) -> dict[str, Any]:
        """What `capture` would import; needs neither a task nor the device."""
        warm_up()
        gc.collect()
        gc.freeze()
        return {}

    def capture(self, params: dict[str, Any]) -> dict[str, Any]:
        """The graph of `forward` as JSON text."""
        inputs = make_inputs(self._task, self._device, params["seed"])
        graph = capture(self._model, inputs, self._task)
        # The compiler's parts that this imported stay, and every later collection would walk over them.
        gc.collect()
        gc.freeze()
        return {"graph": graph.model_dump_json()}

    def free(self, _params: dict[str, Any]) -> dict[str, Any]:
        """Reference, verification and timing hold the device's memory in turn. Answers the bytes that stay."""
        gc.collect()
        self._is_wide = False
        return {"held_bytes": free_cache(self._context.device)}

    def _kept(self, seed: int) -> list[Facts]:
        """What holds of every tensor in three draws."""
        if self._facts is None:
            draws = (flatten(make_inputs(self._task, self._device, seed + 1 + i))[1] for i in range(3))
            self._facts = properties(draws)
        return self._facts

    def _twin(self, seed: int) -> Any:
        """Another instance, constructed under another seed, with the same state dict."""
        model = make_model(self._task, self._init, self._device, seed)
        model.load_state_dict(self._model.state_dict())
        return model

    def _state(self) -> dict[str, Any]:
        return {n: t for n, t in self._model.state_dict().items() if isinstance(t, torch.Tensor)}

    def _fill(self, params: dict[str, Any], tensors: list[Any]) -> None:
        places = self._context.tensors(params["arena"], params["layout"])
        with torch.no_grad():
            for place, tensor in zip(places, tensors, strict=True):
                place.copy_(tensor)

    def _inputs(self, spec: Any, tensors: list[Any]) -> list[Any]:
        """`forward`'s arguments; what the reference changes in place is a copy."""
        own = [t.clone() if i in self._mutated else t for i, t in enumerate(tensors)]
        arguments: list[Any] = unflatten(spec, own)
        return arguments

    def _answer(self, spec: Any, tensors: list[Any], place: dict[str, Any]) -> Any:
        output_spec, outputs = flatten(run_forward(self._task, self._model, self._inputs(spec, tensors)))
        places = self._context.tensors(place["arena"], place["layout"])
        if len(places) != len(outputs) or any(a.shape != b.shape for a, b in zip(places, outputs, strict=True)):
            raise TaskError(
                f"{self._task.name}: forward's output changes its shape with the values", "Make it constant"
            )
        with torch.no_grad():
            for to, tensor in zip(places, outputs, strict=True):
                to.copy_(tensor)
        return output_spec

    def _policy_answer(self, spec: Any, tensors: list[Any], place: dict[str, Any], precision: Precision) -> None:
        with precision_context(precision, self._device):
            self._answer(spec, tensors, place)

    def _oracle_answer(self, spec: Any, tensors: list[Any], place: dict[str, Any]) -> str:
        with task_code(self._task, "Model.forward in float64"):
            oracle = run_float64(self._model, self._inputs(spec, tensors))
        outputs = flatten(oracle.value)[1]
        with torch.no_grad():
            for to, tensor in zip(self._context.tensors(place["arena"], place["layout"]), outputs, strict=True):
                to.copy_(tensor)
        return oracle.precision


def _shape_and_type(tensor: Any) -> dict[str, Any]:
    return {"shape": tuple(tensor.shape), "dtype": str(tensor.dtype)}


def _same(a: Any, b: Any) -> bool:
    """Equal values; NaN equals NaN."""
    return bool(torch.equal(a, b) or ((a == b) | ((a != a) & (b != b))).all())
