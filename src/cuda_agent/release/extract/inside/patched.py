"""The role of a worker that runs a user's whole model with candidates in the place of some submodules.

The original submodules stay in the model, so all weights keep their names. Only their `forward` is replaced: calls of
the verified structure go to the candidate, all others to the original. The statements of this process about itself
are no evidence: the judge compares the outputs and holds the clock.
"""

from pathlib import Path
from typing import Any

import torch

from cuda_agent.release.extract.inside.callspec import Matcher
from cuda_agent.release.extract.inside.requests import CountRedirected, LoadPatched, PatchedPart, RedirectedCalls
from cuda_agent.workers.inside.candidate import (
    LoadedCandidate,
    execute_model,
    import_extension,
    is_frozen,
    load_failure,
)
from cuda_agent.workers.inside.failures import Refusal, first_lines
from cuda_agent.workers.inside.main import Context
from cuda_agent.workers.inside.task.pytree import unflatten
from cuda_agent.workers.inside.task.taskmodule import InitInputs, load_task_module, make_model
from cuda_agent.workers.inside.timed import TimedPrograms
from cuda_agent.workers.requests import Done, FaultKind, Operations
from cuda_agent.workers.requests.candidate import (
    CallModel,
    CallResult,
    CompareWeights,
    ForgetBuffers,
    LoadedWeights,
    LoadWeights,
)


def create(context: Context) -> Operations:
    patched = Patched(context)
    timed = TimedPrograms(context, patched.program)
    return {
        **timed.operations(),
        LoadPatched: patched.load_patched,
        LoadWeights: patched.load_weights,
        CompareWeights: patched.compare_weights,
        CallModel: patched.call,
        ForgetBuffers: patched.forget,
        CountRedirected: patched.count_redirected,
    }


class _Redirect:
    """Replaces a submodule's `forward`. Calls of the verified structure go to the candidate."""

    def __init__(self, submodule: Any, candidate: Any, matcher: Matcher, prefix: str) -> None:
        self._original = submodule.forward
        self._matcher = matcher
        self._submodule, self._prefix = submodule, prefix
        self.candidate = candidate
        self.calls = self.fallbacks = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tensors = self._matcher.tensors(args, kwargs)
        if tensors is None:
            self.fallbacks += 1
            return self._original(*args, **kwargs)
        self.calls += 1
        return self.candidate(*tensors)

    def state(self) -> dict[str, Any]:
        """Returns the submodule's weights under the candidate's names."""
        return {self._prefix + name: value for name, value in self._submodule.state_dict().items()}


class Patched(LoadedCandidate):
    """One whole model in this process."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._redirects: dict[str, _Redirect] = {}

    def load_patched(self, request: LoadPatched) -> Done:
        task = load_task_module(request.source, request.name)
        init = unflatten(request.init, [])
        device = self._context.device.value
        self.model = make_model(task, InitInputs(tuple(init["args"]), init["kwargs"]), device, 0)
        self.model.requires_grad_(False)
        for part in request.parts:
            self._patch(part, device)
        return Done()

    def _patch(self, part: PatchedPart, device: str) -> None:
        import_extension(Path(part.library), package=Path(part.library).parent.name)
        module = execute_model(Path(part.model))
        matcher = Matcher(part.call, part.inputs)
        for path in part.paths:
            try:
                submodule = self.model.get_submodule(path)
            except AttributeError:
                raise Refusal(FaultKind.LOAD, f"the model has no submodule {path}") from None
            try:
                candidate = module.ModelNew().eval().to(device)
            except BaseException as error:  # noqa: BLE001 - the boundary to the candidate's code
                raise load_failure("ModelNew()", error) from None
            redirect = _Redirect(submodule, candidate, matcher, part.prefix)
            submodule.forward = redirect
            self._redirects[path] = redirect

    def load_weights(self, request: LoadWeights) -> LoadedWeights:
        """Sets the weights of the model and of each candidate. `frozen` says whether any of them derives tensors from
        its weights."""
        loaded = super().load_weights(request)
        frozen = False
        with torch.no_grad():
            for path, redirect in self._redirects.items():
                state = redirect.state()
                try:
                    redirect.candidate.load_state_dict(state)
                except (RuntimeError, KeyError, TypeError) as error:
                    raise Refusal(FaultKind.LOAD, f"{path}: load_state_dict refuses: {first_lines(error)}") from None
                frozen = frozen or is_frozen(redirect.candidate, state)
        return loaded.model_copy(update={"frozen": frozen})

    def call(self, request: CallModel) -> CallResult:
        for redirect in self._redirects.values():
            redirect.calls = redirect.fallbacks = 0
        return super().call(request)

    def count_redirected(self, _request: CountRedirected) -> RedirectedCalls:
        return RedirectedCalls(calls={path: (one.calls, one.fallbacks) for path, one in self._redirects.items()})
