"""The candidate worker's role: trusted code in an untrusted process. It loads the library and `model_new.py`, takes
weights and inputs from the judge's buffers and fills the judge's output buffers. Its reports can convict a candidate
but never acquit it."""

from __future__ import annotations

import gc
import importlib.machinery
import importlib.util
import sys
import time
import traceback
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from cuda_agent.core.errors import TaskError
from cuda_agent.workers.buffers import is_dense, synchronize
from cuda_agent.workers.inside.dispatch import recorded
from cuda_agent.workers.inside.failures import Refusal, first_lines, kind_of
from cuda_agent.workers.inside.kernels import Kernels, with_kernels
from cuda_agent.workers.inside.main import Context
from cuda_agent.workers.inside.runner import Program
from cuda_agent.workers.inside.task.pytree import Spec, dtype_name, flatten, tensor_meta, tensor_paths, unflatten
from cuda_agent.workers.inside.task.taskmemory import free_cache
from cuda_agent.workers.inside.task.taskmodule import seed_torch
from cuda_agent.workers.inside.timed import TimedPrograms
from cuda_agent.workers.requests import Done, FaultKind, FreeMemory, HeldMemory, Operations, TensorRefs, operations_of
from cuda_agent.workers.requests import candidate as requests

EXTENSION = "cuda_extension"
_LASTING = (FaultKind.OUT_OF_MEMORY, FaultKind.DEVICE)


def create(context: Context) -> Operations:
    candidate = LoadedCandidate(context)
    timed = TimedPrograms(context, candidate.program, set_config=candidate.set_config)
    own = operations_of(
        candidate.load, candidate.load_weights, candidate.compare_weights, candidate.call, candidate.forget,
        candidate.free,
    )  # fmt: skip
    return {**timed.operations(), **own}


class LoadedCandidate:
    """One candidate in this process."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.model: Any = None
        self._module: Any = None
        #: the inputs of the last call, by their places.
        self._inputs: dict[TensorRefs, list[Any]] = {}
        #: the last outputs where they are kept, and the storage and the span of each.
        self._earlier: list[Any] = []
        self._earlier_spans: list[tuple[StorageWeakRef, tuple[int, int]]] = []
        self._weights: dict[str, Any] = {}

    def load(self, request: requests.LoadCandidate) -> Done:
        self.model = self._module = None
        if request.library is not None:
            import_extension(Path(request.library), request.package)
        module = self._module = execute_model(Path(request.model))
        model_class = getattr(module, "ModelNew", None)
        if not (isinstance(model_class, type) and issubclass(model_class, torch.nn.Module)):
            raise Refusal(FaultKind.LOAD, "model_new.py has no class `ModelNew(nn.Module)`")
        init = unflatten(request.init, [])
        try:
            model = model_class(*init["args"], **init["kwargs"])
            self.model = model.eval().to(self._context.device.value)
        except BaseException as error:  # noqa: BLE001 - the boundary to the candidate's code
            raise load_failure("ModelNew(...)", error) from None
        return Done()

    def program(self, _name: str) -> Program:
        """Returns the timed program, which is the model."""
        return self.model  # type: ignore[no-any-return]

    def set_config(self, config: Mapping[str, int]) -> None:
        """Overrides entries of `model_new.CONFIG`, which the model reads at call time. Raises Refusal without one."""
        known = getattr(self._module, "CONFIG", None)
        if not isinstance(known, dict):
            raise Refusal(FaultKind.LOAD, "model_new.py has no dict `CONFIG`, so there is nothing to screen")
        known.update(config)

    def load_weights(self, request: requests.LoadWeights) -> requests.LoadedWeights:
        tensors = self._context.tensors(request.weights)
        self._weights = dict(zip(request.names, tensors, strict=True))
        synchronize(self._context.device)
        begin = time.perf_counter()
        try:
            with torch.no_grad(), recorded() as operators:
                self.model.load_state_dict(dict(self._weights))
        except (RuntimeError, KeyError, TypeError) as error:
            if kind_of(error) in _LASTING:
                raise
            said = f"ModelNew.load_state_dict refuses Model's state dict: {first_lines(error)}"
            raise Refusal(FaultKind.LOAD, said) from None
        synchronize(self._context.device)
        elapsed = (time.perf_counter() - begin) * 1e3
        frozen = is_frozen(self.model, self._weights)
        return requests.LoadedWeights(derive_ms=elapsed, frozen=frozen, dispatch=operators.report())

    def compare_weights(self, _request: requests.CompareWeights) -> requests.ChangedWeights:
        mine = self.model.state_dict()
        changed = []
        for name, value in self._weights.items():
            own = mine.get(name)
            comparable = isinstance(own, torch.Tensor) and own.shape == value.shape and own.dtype == value.dtype
            if comparable and not bool(torch.equal(own, value) or ((own == value) | (own != own)).all()):
                changed.append(name)
        return requests.ChangedWeights(changed=changed)

    def call(self, request: requests.CallModel) -> requests.CallResult:
        inputs = self._slot(request.inputs)
        arguments = unflatten(request.spec, inputs)

        def forward() -> Any:
            return self.model(*arguments)

        _poison(request.poison)
        seed_torch(request.rng)
        try:
            with torch.no_grad(), recorded() as operators:
                value, seen = with_kernels(forward) if request.kernels else (forward(), Kernels())
            self._check_plain(value)
        finally:
            _poison(False)
        places = self._context.tensors(request.outputs)
        try:
            spec, outputs = flatten(value)
        except TaskError as error:
            raise _misfit(f"the output can't be passed on: {error.cause}") from None
        self._check_fit(spec, outputs, places)
        self._check_alias(outputs, inputs)
        copy_all(places, outputs)
        result = requests.CallResult(
            spec=spec,
            unseen_outputs=operators.unseen(outputs),
            dispatch=operators.report(),
            kernels=seen.rows,
            kernels_error=seen.error,
        )
        self._earlier_spans = [(StorageWeakRef(t.untyped_storage()), _span(t)) for t in outputs if t.numel()]
        self._earlier = outputs if request.keeps else []
        if not request.keeps:
            del value, outputs, operators
            free_cache(self._context.device)
        return result

    def forget(self, _request: requests.ForgetBuffers) -> Done:
        self._inputs.clear()
        self._earlier.clear()
        self._weights.clear()
        return Done()

    def free(self, _request: FreeMemory) -> HeldMemory:
        gc.collect()
        return HeldMemory(held_bytes=free_cache(self._context.device))

    def _slot(self, refs: TensorRefs) -> list[Any]:
        if refs not in self._inputs:
            self._inputs = {refs: self._context.tensors(refs)}
        return self._inputs[refs]

    def _check_plain(self, value: Any) -> None:
        for tensor in torch.utils._pytree.tree_leaves(value):
            if isinstance(tensor, torch.Tensor) and type(tensor) is not torch.Tensor:
                raise _misfit(f"an output is a {type(tensor).__name__}, not a plain tensor")

    def _check_fit(self, spec: Spec, outputs: list[Any], places: list[Any]) -> None:
        if len(outputs) != len(places):
            raise _misfit(f"{len(outputs)} output tensors instead of {len(places)}")
        for path, tensor, place in zip(tensor_paths(spec), outputs, places, strict=True):
            name = f"output{path}"
            mine, wanted = (tuple(tensor.shape), tensor.dtype), (tuple(place.shape), place.dtype)
            if mine != wanted:
                found = f"{list(mine[0])} {dtype_name(mine[1])}"
                raise _misfit(f"{name} is {found} instead of {list(wanted[0])} {dtype_name(wanted[1])}")
            if tensor.device != place.device:
                raise _misfit(f"{name} is on {tensor.device} instead of {place.device}")
            if not is_dense(tensor_meta(tensor)):
                raise _misfit(f"{name} has strides {tuple(tensor.stride())}: elements overlap or lie apart")

    def _check_alias(self, outputs: list[Any], inputs: list[Any]) -> None:
        kept = {
            "an input": inputs,
            "a weight": [*self.model.parameters(), *self.model.buffers()],
        }
        found = {what: [_span(t) for t in tensors if t.numel()] for what, tensors in kept.items()}
        # Memory that nothing holds any more may be used again.
        found["an earlier output"] = [span for storage, span in self._earlier_spans if not storage.expired()]
        for what, spans in found.items():
            for tensor in outputs:
                low, high = _span(tensor)
                if tensor.numel() and any(low < end and begin < high for begin, end in spans):
                    raise Refusal(
                        FaultKind.STRUCTURE, f"an output shares memory with {what}; return storage of its own"
                    )


def copy_all(places: list[Any], tensors: list[Any]) -> None:
    """Copies tensors to their places. No name outlives it that would keep one."""
    with torch.no_grad():
        for place, tensor in zip(places, tensors, strict=True):
            place.copy_(tensor)


def _misfit(message: str) -> Refusal:
    return Refusal(FaultKind.STRUCTURE, message)


def _span(tensor: Any) -> tuple[int, int]:
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def _poison(on: bool) -> None:
    """Sets torch's switch with which `empty` fills with NaN under deterministic algorithms. It only warns and refuses
    nothing."""
    torch.utils.deterministic.fill_uninitialized_memory = True
    # This does what torch.use_deterministic_algorithms does, without importing the whole compiler (2.4 s) to tell it
    # too.
    torch._C._set_deterministic_algorithms(on, warn_only=True)


def import_extension(path: Path, package: str = "") -> None:
    """Imports a library as `cuda_extension`. `package` distinguishes several in one process, since pybind11 returns the
    first module of a full name for every other library of that name."""
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
    kind = kind_of(error)
    return Refusal(kind if kind in _LASTING else FaultKind.LOAD, f"{doing}: {first_lines(error)}")


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
