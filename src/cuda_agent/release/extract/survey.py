"""Surveys the submodules of a model in one pass: how each is called, its time, and its number of operators."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from cuda_agent.core.graph import TensorMeta
from cuda_agent.release.extract.calls import captured, metas, plain_output
from cuda_agent.release.extract.closure import Inexpressible
from cuda_agent.release.extract.times import Event, attribute, marked_clock, median_pass
from cuda_agent.workers.inside.cupti import CuptiUnavailable, record
from cuda_agent.workers.inside.dispatch import Listener
from cuda_agent.workers.inside.task.pytree import Spec
from cuda_agent.workers.inside.task.weights import state_metas

#: the least and the most timed passes, and the seconds after which no more are begun.
LEAST_PASSES, MOST_PASSES, PASSES_S = 5, 30, 2.0
_WARM = 2
#: the reason of parts that kernels of fixed shapes can't take.
DEPENDS = "its call depends on the data: other inputs give other shapes or constants"
_BY_HOST = "by the host's clock, waiting for the GPU at every submodule, since CUPTI isn't available"


@dataclass
class Part:
    """A submodule in one pass. `reason` says why its call can't be a task."""

    path: str
    module: nn.Module
    calls: int = 0
    operators: int = 0
    spec: Spec = field(default_factory=dict)
    inputs: tuple[TensorMeta, ...] = ()
    reason: str = ""
    us: float = 0.0
    own_us: float = 0.0
    children: list[int] = field(default_factory=list)

    @property
    def kind(self) -> str:
        return type(self.module).__name__

    @property
    def alike(self) -> str:
        """A key that is equal for submodules that may be the same task: class, weights and call. The inputs' layouts
        may differ."""
        weights = {name: meta.model_dump(mode="json") for name, meta in state_metas(self.module).items()}
        inputs = [(list(meta.shape), meta.dtype) for meta in self.inputs]
        label = f"{type(self.module).__module__}.{type(self.module).__qualname__}"
        return json.dumps([label, weights, inputs, self.spec], sort_keys=True)


@dataclass(frozen=True)
class Survey:
    """All submodules that are called; the model is the first. `note` says how the time was taken."""

    parts: list[Part]
    total_us: float
    note: str = ""


def survey(model: nn.Module, run: Callable[[], Any], device: str, run_others: Callable[[], Any]) -> Survey:
    """Surveys a model, which `run` calls once. `run_others` calls it with other inputs of the same shapes: parts that
    are called in another way there have the reason `DEPENDS`. Raises the model's errors."""
    # A scripted module takes no hooks; its time belongs to the submodule that calls it.
    named = ((path, module) for path, module in model.named_modules() if not isinstance(module, torch.jit.ScriptModule))
    parts = [Part(path, module) for path, module in named]
    _look(parts, run)
    _look_again(parts, run_others)
    note = _time(parts, run, device)
    return Survey(parts, parts[0].us, note)


#: enter(i, args, kwargs) and leave(i, output).
Enter = Callable[[int, tuple[Any, ...], dict[str, Any]], None]
Leave = Callable[[int, Any], None]


@contextmanager
def hooked(parts: Sequence[Part], enter: Enter, leave: Leave) -> Iterator[None]:
    """Calls `enter` and `leave` for every call of a part, with its index, while the context is open."""
    with ExitStack() as stack:
        for index, part in enumerate(parts):

            def before(_module: Any, args: Any, kwargs: Any, index: int = index) -> None:
                enter(index, args, kwargs)

            def after(_module: Any, _args: Any, _kwargs: Any, output: Any, index: int = index) -> None:
                leave(index, output)

            handles = (
                part.module.register_forward_pre_hook(before, with_kwargs=True),
                part.module.register_forward_hook(after, with_kwargs=True),
            )
            for handle in handles:
                stack.callback(handle.remove)
        yield


class _Count(Listener):
    """Counts operators, without views, for the submodules that are open."""

    def __init__(self, parts: Sequence[Part]) -> None:
        super().__init__()
        self._parts = parts
        self.stack: list[int] = []

    def note(self, operator: Any, args: Any, result: Any) -> None:
        returns = operator._schema.returns
        if any(one.alias_info is not None and not one.alias_info.is_write for one in returns):
            return
        for index in set(self.stack):
            self._parts[index].operators += 1


def _look(parts: list[Part], run: Callable[[], Any]) -> None:
    count = _Count(parts)

    def enter(index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        part = parts[index]
        part.calls += 1
        count.stack.append(index)
        try:
            spec, tensors = captured(part.module, args, kwargs)
            found = spec, metas(tensors)
        except Inexpressible as error:
            part.reason = part.reason or str(error)
            return
        if part.calls > 1 and (spec, _shapes(found[1])) != (part.spec, _shapes(part.inputs)):
            part.reason = part.reason or "it is called in different ways in one pass"
        part.spec, part.inputs = found

    def leave(index: int, output: Any) -> None:
        count.stack.pop()
        try:
            plain_output(output)
        except Inexpressible as error:
            parts[index].reason = parts[index].reason or str(error)

    with hooked(parts, enter, leave), count:
        run()
    for part in parts:
        if part.calls:
            part.operators = -(-part.operators // part.calls)


def _look_again(parts: list[Part], run: Callable[[], Any]) -> None:
    """Finds the parts that `run` calls in another way than they were called before."""

    def enter(index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        part = parts[index]
        if part.reason or not part.calls:
            return
        try:
            spec, tensors = captured(part.module, args, kwargs)
        except Inexpressible:
            part.reason = DEPENDS
            return
        if (spec, _shapes(metas(tensors))) != (part.spec, _shapes(part.inputs)):
            part.reason = DEPENDS

    with hooked(parts, enter, lambda _index, _output: None):
        run()


def _shapes(inputs: Sequence[TensorMeta]) -> list[tuple[tuple[int, ...], str]]:
    return [(meta.shape, meta.dtype) for meta in inputs]


def _time(parts: list[Part], run: Callable[[], Any], device: str) -> str:
    for _ in range(_WARM):
        run()
    passes, note = _passes(parts, run, device)
    times = attribute(median_pass(passes))
    for index, part in enumerate(parts):
        part.us, part.own_us = times.total.get(index, 0) / 1e3, times.own.get(index, 0) / 1e3
    for child, parent in times.parents.items():
        parts[parent].children.append(child)
    return note


def _passes(parts: list[Part], run: Callable[[], Any], device: str) -> tuple[list[list[Event]], str]:
    taken: list[list[Event]] = []
    end = time.monotonic() + PASSES_S
    one, note = (_recorded, "") if device == "cuda" else (_clocked, "")
    while len(taken) < LEAST_PASSES or (len(taken) < MOST_PASSES and time.monotonic() < end):
        try:
            taken.append(one(parts, run))
        except (CuptiUnavailable, ValueError):
            if one is not _recorded:
                raise
            one, note = _clocked, _BY_HOST
            taken.clear()
    return taken, note


def _clocked(parts: list[Part], run: Callable[[], Any]) -> list[Event]:
    events: list[Event] = []
    synchronize = torch.cuda.synchronize if torch.cuda.is_initialized() else lambda: None

    def note(index: int, entered: bool) -> None:
        synchronize()
        events.append(Event(index, entered, time.perf_counter_ns()))

    with hooked(parts, lambda index, *_: note(index, True), lambda index, _: note(index, False)):
        run()
    return events


def _recorded(parts: list[Part], run: Callable[[], Any]) -> list[Event]:
    """Takes the times on the GPU. Each hook launches a marker kernel; what runs between two markers belongs to the
    submodule that is open. Raises CuptiUnavailable, and ValueError where markers are missing."""
    seen: list[tuple[int, bool]] = []

    def note(index: int, entered: bool) -> None:
        seen.append((index, entered))
        torch.cuda._sleep(1)

    with hooked(parts, lambda index, *_: note(index, True), lambda index, _: note(index, False)):
        spans = record(run)
    marks = marked_clock((span.name, span.start_ns, span.end_ns) for span in spans)
    if len(marks) != len(seen):
        raise ValueError(f"{len(marks)} markers for {len(seen)} events")
    return [Event(index, entered, mark) for (index, entered), mark in zip(seen, marks, strict=True)]
