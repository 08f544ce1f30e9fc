"""The judge's view of the reference worker: what a task consists of, inputs, weights and answers in buffers of the
judge.

Everything that the worker says is checked here (`TaskSpec`) before it is used; its faults are the task's: TaskError.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field, ValidationError

from cuda_agent.core.enums import Device, Precision, Verdict
from cuda_agent.core.errors import CudaAgentError, OutOfMemory, TaskError, WorkerError
from cuda_agent.core.graph import Graph, TensorMeta
from cuda_agent.core.record import Record
from cuda_agent.core.records import Task
from cuda_agent.workers.buffers import (
    ITEM_BYTES,
    Arena,
    Layout,
    OutOfDeviceMemory,
    contiguous,
    extent_bytes,
    is_dense,
    synchronize,
    trim,
)
from cuda_agent.workers.process import Worker, WorkerFault

Spec = dict[str, Any]

_LOAD_TIMEOUT_S = 600.0
_FLOATING = ("float16", "bfloat16", "float32", "float64")


class TaskSpec(Record):
    """What crosses between processes for one task. Metas are dense: what isn't is laid out in row-major order."""

    init: Spec
    inputs_spec: Spec
    inputs: tuple[TensorMeta, ...] = Field(min_length=1)
    state: dict[str, TensorMeta]
    outputs_spec: Spec
    outputs: tuple[TensorMeta, ...]
    #: inputs that the reference changes in place.
    mutated: tuple[int, ...]
    #: float32 matrix products or convolutions occur.
    products: bool
    #: eager at the precision policy isn't eager at PyTorch's flags.
    policy_differs: bool
    variants: tuple[str, ...]
    #: variants far from what the task draws.
    wide_variants: tuple[str, ...] = ()
    #: of the device's memory, that a call holds at the most, inputs and weights included; 0 on the CPU.
    peak_bytes: int = Field(default=0, ge=0)

    @property
    def rest_bytes(self) -> int:
        """Of `peak_bytes`, what is neither input nor output."""
        return max(0, self.peak_bytes - sum(map(extent_bytes, (*self.inputs, *self.outputs))))


@dataclass(frozen=True)
class Answer:
    """The reference's answer to one set of inputs, as tensors in row-major order, valid until the next one is asked
    for."""

    spec: Spec
    eager: list[Any]
    policy: list[Any]
    oracle: list[Any]
    oracle_kind: str


@dataclass(frozen=True)
class Places:
    """Where a list of tensors lies."""

    arena: Arena
    layout: Layout

    def to_wire(self) -> dict[str, Any]:
        return {"arena": self.arena.name, "layout": self.layout.to_wire()}

    def tensors(self) -> list[Any]:
        return self.arena.tensors(self.layout.slots)


def is_floating(dtype: str) -> bool:
    return dtype in _FLOATING


class Reference:
    """One task in a reference worker, and the judge's masters of its inputs, weights and answers."""

    _names = itertools.count()

    def __init__(self, worker: Worker, task: Task, precision: Precision, *, timeout_s: float) -> None:
        self._worker = worker
        self._task = task
        self._precision = precision
        self._timeout_s = timeout_s
        self._places: dict[str, Places] = {}
        self.spec: TaskSpec
        #: of the device, by what the worker said at its rest; None from the next request on.
        self.held_bytes: int | None = None

    @property
    def device(self) -> Device:
        return self._worker.settings.device

    @property
    def alive(self) -> bool:
        return self._worker.alive

    def load(self, seed: int) -> TaskSpec:
        """Raises TaskError where the task can't be judged."""
        params = {
            "name": self._task.name,
            "source": self._task.source,
            "seed": seed,
            "precision": self._precision.value,
        }
        reply = self._ask("load", params, timeout_s=max(_LOAD_TIMEOUT_S, self._timeout_s))
        self.spec = _checked_spec(reply, self._task.name)
        return self.spec

    def graph(self, seed: int) -> Graph:
        """`forward` as a graph. Raises TaskError("can't be captured")."""
        reply = self._ask("capture", {"seed": seed}, timeout_s=max(_LOAD_TIMEOUT_S, self._timeout_s))
        try:
            return Graph.from_json(str(reply["graph"]), where="the captured graph")
        except (KeyError, TypeError, CudaAgentError) as error:
            raise WorkerError(f"The reference worker sent no graph: {error}", "Run again") from None

    @property
    def inputs(self) -> Places:
        """The master inputs, which only the judge and the reference worker map."""
        return self._place("inputs", self.spec.inputs)

    @property
    def weights(self) -> Places:
        return self._place("weights", tuple(self.spec.state.values()))

    def draw_inputs(self, seed: int, into: Places | None = None) -> Spec:
        """Fresh inputs under `seed`, into the masters where no other place is given; returns their spec."""
        return self._draw(seed, None, into)[0]

    def draw_slots(self, seeds: Sequence[int], slots: Sequence[Places]) -> list[Spec]:
        """Fresh inputs under each seed into its place, all of one arena, in one request; their specs."""
        self._attach(slots[0])
        layouts = [places.layout.to_wire() for places in slots]
        params = {"seeds": list(seeds), "arena": slots[0].arena.name, "layouts": layouts}
        specs = self._ask("draw_slots", params).get("specs")
        if not (isinstance(specs, list) and len(specs) == len(slots) and all(isinstance(s, dict) for s in specs)):
            raise WorkerError("The reference worker drew inputs without a spec", "Run again")
        return specs

    def draw_variant(self, seed: int, kind: str) -> tuple[Spec, str | None]:
        """Fresh inputs, changed; or why that variant doesn't apply to them."""
        return self._draw(seed, kind, None)

    def _draw(self, seed: int, variant: str | None, into: Places | None) -> tuple[Spec, str | None]:
        places = into or self.inputs
        self._attach(places)
        reply = self._ask("draw_inputs", {"seed": seed, "variant": variant, **places.to_wire()})
        spec, dropped = reply.get("spec"), reply.get("dropped")
        if not isinstance(spec, dict):
            raise WorkerError("The reference worker drew inputs without a spec", "Run again")
        return spec, None if dropped is None else str(dropped)

    def draw_weights(self, seed: int | None) -> None:
        """Re-drawn weights into the masters; `None`: as they are now."""
        if self.spec.state:
            self._attach(self.weights)
            self._ask("draw_weights", {"seed": seed, **self.weights.to_wire()})

    def answer(
        self, spec: Spec, rng: int, *, inputs: Places | None = None, oracle: bool = True, twin: int | None = None
    ) -> Answer:
        """The task's answers to the inputs (the masters where none are given), under the generator seed `rng`. With
        `twin`, a second model answers, constructed under that seed, with the same state dict; then `eager` is all
        that is valid."""
        given = inputs or self.inputs
        metas = [contiguous(meta) for meta in self.spec.outputs]
        wanted = {"eager": self._place("eager", metas)}
        if self.spec.policy_differs and oracle:
            wanted["policy"] = self._place("policy", metas)
        if oracle:
            wide = [contiguous(m, "float64") if is_floating(m.dtype) else m for m in metas]
            wanted["oracle"] = self._place("oracle", wide)
        for places in (given, *wanted.values()):
            self._attach(places)
        reply = self._ask(
            "expected",
            {
                "inputs": {**given.to_wire(), "spec": spec},
                "outputs": {name: places.to_wire() for name, places in wanted.items()},
                "precision": self._precision.value,
                "rng": rng,
                "twin": twin,
            },
        )
        eager = wanted["eager"].tensors()
        return Answer(
            spec=reply["spec"],
            eager=eager,
            policy=wanted["policy"].tensors() if "policy" in wanted else eager,
            oracle=wanted["oracle"].tensors() if oracle else eager,
            oracle_kind=str(reply["oracle"]),
        )

    def detach(self, places: Places) -> None:
        """Lets the worker forget an arena that the judge is about to free."""
        try:
            self._worker.detach(places.arena)
        except WorkerFault as error:
            raise _as_task_error(self._task.name, "detach", error) from None

    def release(self) -> None:
        """Others get the device: frees the masters, which come back when they are next needed, and what the worker
        holds without need. Raises TaskError."""
        for places in self._places.values():
            if self._worker.alive:
                self.detach(places)
            places.arena.close()
        self._places.clear()
        trim(self.device)
        if self._worker.alive and self.held_bytes is None:
            held = self._ask("free", {}).get("held_bytes")
            self.held_bytes = held if type(held) is int and held >= 0 else 0

    def _place(self, purpose: str, metas: Sequence[TensorMeta]) -> Places:
        if purpose not in self._places:
            self._places[purpose] = allocate(f"reference-{purpose}", metas, self.device)
        return self._places[purpose]

    def _attach(self, places: Places) -> None:
        try:
            self._worker.attach(places.arena)
        except WorkerFault as error:
            raise _as_task_error(self._task.name, "attach", error) from None

    def _ask(self, op: str, params: dict[str, Any], timeout_s: float | None = None) -> Any:
        synchronize(self.device)
        self.held_bytes = None
        try:
            reply = self._worker.request(op, params, timeout_s=timeout_s or self._timeout_s)
        except WorkerFault as error:
            raise _as_task_error(self._task.name, op, error) from None
        if not isinstance(reply, dict):
            raise WorkerError(f"The reference worker answered {op} with a {type(reply).__name__}", "Run again")
        return reply


_arena_numbers = itertools.count(1)


def allocate(purpose: str, metas: Sequence[TensorMeta], device: Device, copies: int = 1) -> Places:
    """A new arena for tensors of these metas. Raises OutOfMemory."""
    layout = Layout.pack(metas, device, copies)
    try:
        return Places(Arena(f"{purpose}-{next(_arena_numbers)}", layout.nbytes, device), layout)
    except OutOfDeviceMemory as error:
        raise OutOfMemory(
            f"No memory for {purpose}: {error}", "Free memory on the device or make the task smaller"
        ) from None


@contextlib.contextmanager
def comparing(purpose: str) -> Iterator[None]:
    """What the judge itself computes on the device. Raises OutOfMemory."""
    try:
        yield
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":
            raise
        said = str(error).partition(". GPU ")[0]
        raise OutOfMemory(
            f"No memory for {purpose}: {said}", "Free memory on the device or make the task smaller"
        ) from None


def _checked_spec(reply: Any, name: str) -> TaskSpec:
    try:
        spec = TaskSpec.model_validate(reply)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise WorkerError(
            f"The reference worker described the task wrongly: {where}: {first['msg']}", "Run again"
        ) from None
    metas = (*spec.inputs, *spec.state.values(), *spec.outputs)
    for meta in metas:
        if meta.dtype not in ITEM_BYTES or len(meta.shape) != len(meta.strides) or min(meta.shape, default=0) < 0:
            raise TaskError(f"{name}: a tensor of type {meta.dtype} can't be judged", "Use real numbers or integers")
    if not spec.outputs:
        raise TaskError(f"{name}: forward() returns no tensor", "Return at least one tensor")
    return spec.model_copy(
        update={
            "inputs": tuple(m if is_dense(m) else contiguous(m) for m in spec.inputs),
            "state": {n: m if is_dense(m) else contiguous(m) for n, m in spec.state.items()},
        }
    )


def _as_task_error(name: str, op: str, error: WorkerFault) -> CudaAgentError:
    fault = error.fault
    if fault.kind == "task":
        cause, _, remedy = fault.reason.partition("\n")
        return TaskError(cause, remedy, detail=fault.log_tail)
    if fault.kind == "protocol":
        return WorkerError(
            f"{name}: the reference worker broke its protocol", "Check the task's code", detail=fault.reason
        )
    line = " ".join(fault.reason.split())[:300]
    if fault.verdict is Verdict.OUT_OF_MEMORY:
        return OutOfMemory(
            f"{name}: the reference runs out of memory ({op}): {line}", "Shrink the task", detail=fault.log_tail
        )
    what = "takes too long" if fault.verdict is Verdict.TIMED_OUT else "fails"
    return TaskError(
        f"{name}: the reference {what} ({op}): {line}", "Correct or shrink the task", detail=fault.log_tail
    )
