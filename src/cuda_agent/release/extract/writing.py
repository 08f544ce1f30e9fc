"""Writes a submodule as a task file, and checks that the file computes the same. It runs in the sandbox."""

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cuda_agent.core.assets import filled
from cuda_agent.core.errors import TaskError
from cuda_agent.release.extract.calls import ForwardCall
from cuda_agent.release.extract.closure import Inexpressible, Sources
from cuda_agent.release.extract.constructors import Constructions, Writer
from cuda_agent.release.extract.inside.callspec import Matcher
from cuda_agent.release.extract.survey import Part
from cuda_agent.workers.inside.graph.capture import capture
from cuda_agent.workers.inside.task.pytree import flatten
from cuda_agent.workers.inside.task.taskmodule import InitInputs, load_task_module, make_inputs, make_model, run_forward
from cuda_agent.workers.inside.task.weights import state_metas

PREFIX = "module."
#: largest relative difference of a rebuilt submodule's output from the original's.
SAME = {torch.float32: 1e-4, torch.float64: 1e-8}
_SAME_IN_HALF = 2e-2
_MOST_PATHS = 6


@dataclass(frozen=True)
class Written:
    """The file of a task. `origin` says where its class comes from."""

    name: str
    source: str
    origin: str


def write_task(
    part: Part, draws: list[str], constructions: Constructions, own: frozenset[str], name: str, described: str
) -> Written:
    """Writes the task of a submodule. `draws` are the texts that draw its inputs. Raises Inexpressible."""
    sources = Sources(own)
    made = Writer(constructions, sources).module(part.module) + _cast(part.module)
    call = ForwardCall(part.module, part.spec, len(part.inputs))
    kind = type(part.module)
    installed = kind.__module__ not in own
    origin = f"{kind.__module__}.{kind.__qualname__}" if installed else f"{kind.__qualname__}, the model's own"
    source = filled(
        Path(__file__).with_name("task.py.j2"), described=described, imports=sources.imports(), call=call, draws=draws,
        definitions=sources.definitions(), made=made,
    )  # fmt: skip
    return Written(name, source, origin)


def describe(model: str, part: Part, paths: list[str], calls: int) -> str:
    """Returns the first lines of a task's file. They hold no measurement, so that the task's key stays the same."""
    more = f" and {len(paths) - _MOST_PATHS} more" if len(paths) > _MOST_PATHS else ""
    named = ", ".join(paths[:_MOST_PATHS]) + more
    text = f"{part.kind} of {model}, {calls} call{'s' if calls > 1 else ''} in one pass.\n\nExtracted from {named}."
    plain = re.sub(r'[\\"]', "'", text)
    return "\n\n".join(textwrap.fill(block, 100) for block in plain.split("\n\n"))


def _cast(module: nn.Module) -> str:
    """Returns `.to(…)` where the module was converted after its construction."""
    kinds = {t.dtype for t in (*module.parameters(), *module.buffers()) if t.is_floating_point()}
    if len(kinds) > 1:
        return ""
    kind = kinds.pop() if kinds else torch.float32
    return "" if kind is torch.float32 else f".to({kind})"


class Rebuilt:
    """The model of a written task, to be compared with the submodules that it replaces."""

    def __init__(self, written: Written, part: Part, device: str) -> None:
        """Raises Inexpressible where the file doesn't run, or its weights differ from the submodule's."""
        try:
            self._task = load_task_module(written.source, written.name)
            self._model = make_model(self._task, InitInputs(), device, 0)
        except TaskError as error:
            raise Inexpressible(f"the written task doesn't run: {error.cause}") from None
        wanted = {PREFIX + name: meta for name, meta in state_metas(part.module).items()}
        if state_metas(self._model) != wanted:
            raise Inexpressible("constructed again it has other weights: it was changed after its construction")
        self._matcher = Matcher(part.spec, part.inputs)
        self._device = device

    def check_draws(self) -> None:
        """Raises Inexpressible where the model fails on drawn inputs, or its output can't show a wrong answer."""
        try:
            first, second = (self._outputs(make_inputs(self._task, self._device, seed)) for seed in (1, 2))
        except TaskError as error:
            raise Inexpressible(f"it fails on drawn inputs: {error.cause}") from None
        if not first:
            raise Inexpressible("it returns no tensor")
        if any(t.is_floating_point() and not bool(t.isfinite().all()) for t in (*first, *second)):
            raise Inexpressible("its output isn't finite on drawn inputs")
        if all(bool(torch.equal(a, b)) for a, b in zip(first, second, strict=True)):
            raise Inexpressible("its output doesn't depend on the inputs' values")

    def check_captured(self) -> None:
        """Raises Inexpressible where the graph can't be captured: no kernel can be planned for the whole of it."""
        try:
            capture(self._model, make_inputs(self._task, self._device, 1), self._task)
        except TaskError as error:
            raise Inexpressible(error.cause) from None

    def difference(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> str:
        """Returns the difference from `module`, which gave `output` for this call; "" where there is none."""
        tensors = self._matcher.tensors(args, kwargs)
        if tensors is None:
            return "it is called in another way"
        self._model.load_state_dict({PREFIX + name: value for name, value in module.state_dict().items()})
        mine, theirs = self._outputs(tensors), flatten(output)[1]
        if [(t.shape, t.dtype) for t in mine] != [(t.shape, t.dtype) for t in theirs]:
            return "it returns other tensors"
        same = all(_near(a, b) for a, b in zip(mine, theirs, strict=True))
        return "" if same else "constructed again, with the same weights, it gives another answer"

    def _outputs(self, inputs: list[Any]) -> list[Any]:
        try:
            return flatten(run_forward(self._task, self._model, inputs))[1]
        except TaskError as error:
            raise Inexpressible(error.cause) from None


def _near(mine: Any, theirs: Any) -> bool:
    if not mine.is_floating_point():
        return bool(torch.equal(mine, theirs))
    known = torch.isfinite(theirs)
    if not bool((torch.isfinite(mine) == known).all()):
        return False
    bound = SAME.get(theirs.dtype, _SAME_IN_HALF)
    mine, theirs = mine[known].double(), theirs[known].double()
    apart = float(torch.linalg.vector_norm(mine - theirs))
    return apart <= bound * float(torch.linalg.vector_norm(theirs)) + 1e-12
