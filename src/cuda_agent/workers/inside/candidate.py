"""The candidate worker's role: trusted code in an untrusted process. It loads the library and `model_new.py`, takes
weights and inputs from the judge's buffers and fills the judge's output buffers. What it reports convicts and never
acquits.
"""

from __future__ import annotations

import gc
import importlib.machinery
import importlib.util
import sys
import time
import traceback
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from cuda_agent.core.errors import TaskError
from cuda_agent.workers.buffers import is_dense
from cuda_agent.workers.inside.dispatch import recorded
from cuda_agent.workers.inside.kernels import with_kernels
from cuda_agent.workers.inside.main import Context, Operation, Refusal, classify, first_lines
from cuda_agent.workers.inside.runner import Program
from cuda_agent.workers.inside.task.pytree import Spec, dtype_name, flatten, tensor_meta, tensor_paths, unflatten
from cuda_agent.workers.inside.task.taskmemory import free_cache
from cuda_agent.workers.inside.timed import TimedPrograms

EXTENSION = "cuda_extension"


def create(context: Context) -> Mapping[str, Operation]:
    candidate = Candidate(context)
    timed = TimedPrograms(context, candidate.program, set_config=candidate.set_config)
    return {
        **timed.operations(),
        "load": candidate.load,
        "set_weights": candidate.set_weights,
        "weights_intact": candidate.weights_intact,
        "call": candidate.call,
        "forget": candidate.forget,
        "free": candidate.free,
    }


class Candidate:
    """One candidate in this process."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.model: Any = None
        self._module: Any = None
        self._inputs: dict[str, list[Any]] = {}
        self._earlier: list[Any] = []
        self._weights: dict[str, Any] = {}

    def load(self, params: dict[str, Any]) -> dict[str, Any]:
        """The library as `cuda_extension`, `model_new.py` as `model_new`, and `ModelNew(*init inputs)` on the
        device, in the place of the candidate before it. `package`: another one for each that follows."""
        self.model = self._module = None
        if params["library"] is not None:
            import_extension(Path(params["library"]), params.get("package", ""))
        module = self._module = execute_model(Path(params["model"]))
        model_class = getattr(module, "ModelNew", None)
        if not (isinstance(model_class, type) and issubclass(model_class, torch.nn.Module)):
            raise Refusal("load", "model_new.py has no class `ModelNew(nn.Module)`")
        init = unflatten(params["init"], [])
        try:
            model = model_class(*init["args"], **init["kwargs"])
            self.model = model.eval().to(self._context.device.value)
        except BaseException as error:  # noqa: BLE001 - the boundary to the candidate's code
            raise load_failure("ModelNew(...)", error) from None
        return {}

    def program(self, _name: str) -> Program:
        """What is timed: the model itself."""
        return self.model  # type: ignore[no-any-return]

    def set_config(self, config: Mapping[str, int]) -> None:
        """Overrides entries of `model_new.CONFIG`, which the model reads at call time. Raises Refusal without one."""
        known = getattr(self._module, "CONFIG", None)
        if not isinstance(known, dict):
            raise Refusal("load", "model_new.py has no dict `CONFIG`, so there is nothing to screen")
        known.update(config)

    def set_weights(self, params: dict[str, Any]) -> dict[str, Any]:
        """`load_state_dict` from an arena. `derive_ms` is what it took, copies included; `operators` what the
        dispatcher saw meanwhile."""
        names, layout = params["names"], params["layout"]
        self._weights = dict(zip(names, self._tensors(params["arena"], layout), strict=True))
        self._synchronize()
        begin = time.perf_counter()
        try:
            with torch.no_grad(), recorded() as operators:
                self.model.load_state_dict(dict(self._weights))
        except (RuntimeError, KeyError, TypeError) as error:
            if classify(error)[0] in ("oom", "device"):
                raise
            raise Refusal(
                "load", f"ModelNew.load_state_dict refuses Model's state dict: {first_lines(error)}"
            ) from None
        self._synchronize()
        elapsed = (time.perf_counter() - begin) * 1e3
        return {"derive_ms": elapsed, "frozen": is_frozen(self.model, self._weights), **operators.report()}

    def weights_intact(self, params: dict[str, Any]) -> dict[str, Any]:
        """Names of weights whose values in the model are no longer those that were loaded."""
        mine = self.model.state_dict()
        changed = []
        for name, value in self._weights.items():
            own = mine.get(name)
            comparable = isinstance(own, torch.Tensor) and own.shape == value.shape and own.dtype == value.dtype
            if comparable and not bool(torch.equal(own, value) or ((own == value) | (own != own)).all()):
                changed.append(name)
        return {"changed": changed}

    def call(self, params: dict[str, Any]) -> dict[str, Any]:
        """One `forward` on a slot's inputs, its outputs checked and copied to the judge's buffers.

        The tensors of a slot are the same objects at every call. With `poison`, memory that torch allocates is filled
        with NaN (or the largest integer) first, so that an unwritten output shows. The answer holds what the dispatcher
        saw of the call and, with `kernels`, what ran on the GPU.
        """
        inputs = self._slot(params["inputs"])
        arguments = unflatten(params["inputs"]["spec"], inputs)

        def forward() -> Any:
            return self.model(*arguments)

        _poison(bool(params["poison"]))
        try:
            with torch.no_grad(), recorded() as operators:
                value, seen = with_kernels(forward) if params["kernels"] else (forward(), {})
            self._check_plain(value)
        finally:
            _poison(False)
        places = self._tensors(params["outputs"]["arena"], params["outputs"]["layout"])
        spec, outputs = self._structure(value)
        self._check_fit(spec, outputs, places)
        self._check_alias(outputs, inputs)
        with torch.no_grad():
            for place, tensor in zip(places, outputs, strict=True):
                place.copy_(tensor)
        self._earlier = outputs
        return {"spec": spec, "unseen_outputs": operators.unseen(outputs), **operators.report(), **seen}

    def forget(self, params: dict[str, Any]) -> dict[str, Any]:
        """Lets go of everything over the judge's arenas and of earlier outputs."""
        self._inputs.clear()
        self._earlier.clear()
        self._weights.clear()
        return {}

    def free(self, params: dict[str, Any]) -> dict[str, Any]:
        """What torch keeps of the device's memory without need goes to others. Answers the bytes that stay."""
        gc.collect()
        return {"held_bytes": free_cache(self._context.device)}

    def _slot(self, given: dict[str, Any]) -> list[Any]:
        key = f"{given['arena']}:{[wire['offset'] for wire in given['layout']]}"
        if key not in self._inputs:
            self._inputs[key] = self._tensors(given["arena"], given["layout"])
        return self._inputs[key]

    def _tensors(self, arena: str, layout: Iterable[dict[str, Any]]) -> list[Any]:
        return self._context.tensors(arena, layout)

    def _synchronize(self) -> None:
        if self._context.device.value == "cuda":
            torch.cuda.synchronize()

    def _check_plain(self, value: Any) -> None:
        for tensor in _leaves(value):
            if type(tensor) is not torch.Tensor:
                raise Refusal("structure", f"an output is a {type(tensor).__name__}, not a plain tensor")

    def _structure(self, value: Any) -> tuple[Spec, list[Any]]:
        try:
            return flatten(value)
        except TaskError as error:
            raise Refusal("structure", f"the output can't be passed on: {error.cause}") from None

    def _check_fit(self, spec: Spec, outputs: list[Any], places: list[Any]) -> None:
        if len(outputs) != len(places):
            raise Refusal("structure", f"{len(outputs)} output tensors instead of {len(places)}")
        for path, tensor, place in zip(tensor_paths(spec), outputs, places, strict=True):
            name = f"output{path}"
            mine, wanted = (tuple(tensor.shape), tensor.dtype), (tuple(place.shape), place.dtype)
            if mine != wanted:
                found = f"{list(mine[0])} {dtype_name(mine[1])}"
                raise Refusal("structure", f"{name} is {found} instead of {list(wanted[0])} {dtype_name(wanted[1])}")
            if tensor.device != place.device:
                raise Refusal("structure", f"{name} is on {tensor.device} instead of {place.device}")
            if not is_dense(tensor_meta(tensor)):
                raise Refusal(
                    "structure", f"{name} has strides {tuple(tensor.stride())}: elements overlap or lie apart"
                )

    def _check_alias(self, outputs: list[Any], inputs: list[Any]) -> None:
        kept = {
            "an input": inputs,
            "an earlier output": self._earlier,
            "a weight": [*self.model.parameters(), *self.model.buffers()],
        }
        for what, tensors in kept.items():
            spans = [_span(t) for t in tensors if t.numel()]
            for tensor in outputs:
                low, high = _span(tensor)
                if tensor.numel() and any(low < end and begin < high for begin, end in spans):
                    raise Refusal("structure", f"an output shares memory with {what}; return storage of its own")


def _leaves(value: Any) -> list[Any]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _span(tensor: Any) -> tuple[int, int]:
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def _poison(on: bool) -> None:
    """torch's own switch: `empty` fills with NaN under deterministic algorithms. Warnings only: nothing is refused."""
    torch.utils.deterministic.fill_uninitialized_memory = True
    # What torch.use_deterministic_algorithms does, but for importing the whole compiler (2.4 s) to tell it too.
    torch._C._set_deterministic_algorithms(on, warn_only=True)


def import_extension(path: Path, package: str = "") -> None:
    """As `cuda_extension`. `package` tells several of one process apart: pybind11 hands out the first module of a full
    name again for every other library that comes under it."""
    name = f"{package}.{EXTENSION}" if package else EXTENSION
    try:
        loader = importlib.machinery.ExtensionFileLoader(name, str(path))
        spec = importlib.util.spec_from_loader(name, loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        sys.modules[EXTENSION] = module
    except BaseException as error:  # noqa: BLE001 - the boundary to the candidate's code
        raise load_failure("loading the library", error) from None


def execute_model(path: Path) -> types.ModuleType:
    module = types.ModuleType("model_new")
    module.__file__ = str(path)
    sys.modules["model_new"] = module
    try:
        exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
    except BaseException as error:  # noqa: BLE001 - the boundary to the candidate's code
        raise load_failure("model_new.py", error) from None
    return module


def load_failure(doing: str, error: BaseException) -> Refusal:
    sys.stderr.write("".join(traceback.format_exception(error))[-16384:])
    kind = classify(error)[0]
    return Refusal(kind if kind in ("oom", "device") else "load", f"{doing}: {first_lines(error)}")


def is_frozen(model: Any, state: Mapping[str, Any]) -> bool:
    """Whether weights are derived when they are loaded: a module loads them in its own way, or keeps tensors that the
    state dict doesn't hold."""
    plain = torch.nn.Module
    for module in model.modules():
        kind = type(module)
        if kind.load_state_dict is not plain.load_state_dict or module._load_state_dict_post_hooks:
            return True
        if kind.__module__ == "model_new" and kind._load_from_state_dict is not plain._load_from_state_dict:
            return True
        if any(isinstance(value, torch.Tensor) for value in vars(module).values()):
            return True
    own = {name for name, _ in model.named_parameters()} | {name for name, _ in model.named_buffers()}
    return bool(own - set(state))
