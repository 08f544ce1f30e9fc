"""The judge's view of the reference worker: the task's facts, and its inputs, weights and answers in buffers of the
judge.

A fault of this worker is a fault of the task: TaskError.
"""

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from cuda_agent.core.enums import Device, OracleWay, Precision, Verdict
from cuda_agent.core.errors import CudaAgentError, OutOfMemory, TaskError, WorkerError
from cuda_agent.core.graph import Graph, TensorMeta
from cuda_agent.core.records import Task
from cuda_agent.judge.verify.answers import PIECE, Piece, Stretch, parts
from cuda_agent.workers.buffers import (
    ITEM_BYTES,
    Arena,
    Layout,
    OutOfDeviceMemory,
    dense,
    synchronize,
    trim,
)
from cuda_agent.workers.channel import name_of
from cuda_agent.workers.process import Fault, Worker, WorkerFault
from cuda_agent.workers.requests import A, FaultKind, FreeMemory, Spec, TensorRefs, WorkerRequest
from cuda_agent.workers.requests import reference as requests

_LOAD_TIMEOUT_S = 600.0
_FLOATING = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True)
class Places:
    """The places of a list of tensors."""

    arena: Arena
    layout: Layout

    @cached_property
    def refs(self) -> TensorRefs:
        """The tensors as a request names them."""
        return TensorRefs(arena=self.arena.name, slots=self.layout.slots)

    def tensors(self) -> list[Any]:
        return self.arena.tensors(self.layout.slots)


class Reference:
    """One task in a reference worker, and the judge's masters of its inputs, weights and answers."""

    #: bytes of a call from which on the answers are taken in pieces.
    large_bytes = requests.LARGE

    def __init__(self, worker: Worker, task: Task, precision: Precision, *, timeout_s: float) -> None:
        self._worker = worker
        self._task = task
        self._precision = precision
        self._timeout_s = timeout_s
        self._places: dict[str, Places] = {}
        self.spec: requests.TaskSpec
        #: bytes of device memory that the worker reported at rest; None from the next request on.
        self.held_bytes: int | None = None
        #: counts what the worker computed, and draws of inputs or weights.
        self.computed = self.drawn = 0
        #: device memory that the float64 answer took in the worker; None before the first.
        self.oracle_bytes: int | None = None
        #: whether weights are scaled unless a draw says otherwise.
        self.scaled = False

    @property
    def device(self) -> Device:
        return self._worker.settings.device

    @property
    def alive(self) -> bool:
        return self._worker.alive

    def load(self, seed: int) -> requests.TaskSpec:
        """Loads the task. Raises TaskError where it can't be judged."""
        name = self._task.name
        request = requests.LoadTask(
            name=name, source=self._task.source, seed=seed, precision=self._precision, large_bytes=self.large_bytes
        )
        self.spec = _judgeable(self._ask(request, timeout_s=max(_LOAD_TIMEOUT_S, self._timeout_s)), name)
        return self.spec

    def graph(self, seed: int) -> Graph:
        """Returns `forward` as a graph. Raises TaskError where it can't be captured."""
        captured = self._ask(requests.CaptureGraph(seed=seed), timeout_s=max(_LOAD_TIMEOUT_S, self._timeout_s))
        try:
            return Graph.from_json(captured.graph, where="the captured graph")
        except CudaAgentError as error:
            raise WorkerError(f"The reference worker sent no graph: {error}", "Run again") from None

    @property
    def inputs(self) -> Places:
        """The master inputs, which only the judge and the reference worker map."""
        return self._place("inputs", self.spec.inputs)

    @property
    def weights(self) -> Places:
        return self._place("weights", tuple(self.spec.state.values()))

    def draw_inputs(self, seed: int) -> Spec:
        """Draws inputs under `seed` into the masters. Returns their spec."""
        return self._draw((seed,), (self.inputs,)).specs[0]

    def draw_slots(self, seeds: Sequence[int], slots: Sequence[Places]) -> list[Spec]:
        """Draws inputs under each seed into its place in one request. All places are of one arena. Returns their
        specs."""
        return list(self._draw(seeds, slots).specs)

    def draw_variant(self, seed: int, kind: str | None) -> tuple[Spec, str | None]:
        """Draws inputs into the masters and changes them as `kind` says, or returns why that variant doesn't apply to
        them."""
        drawn = self._draw((seed,), (self.inputs,), kind)
        return (drawn.specs[0], None) if drawn.dropped is None else ({}, drawn.dropped)

    def _draw(self, seeds: Sequence[int], places: Sequence[Places], variant: str | None = None) -> requests.DrawnInputs:
        self._attach(places[0])
        self.drawn += 1
        request = requests.DrawInputs(seeds=tuple(seeds), into=tuple(place.refs for place in places), variant=variant)
        drawn = self._ask(request)
        dropped = variant is not None and drawn.dropped is not None
        if not dropped and (drawn.dropped is not None or len(drawn.specs) != len(places)):
            raise WorkerError("The reference worker drew inputs without a spec", "Run again")
        return drawn

    def draw_weights(self, seed: int | None, *, scaled: bool | None = None) -> None:
        """Draws weights into the masters; with `None` it copies the present ones. `scaled` replaces `self.scaled`."""
        if self.spec.state:
            self._attach(self.weights)
            self.drawn += 1
            is_scaled = self.scaled if scaled is None else scaled
            self._ask(requests.DrawWeights(seed=seed, into=self.weights.refs, scaled=is_scaled))

    def answer(self, spec: Spec, rng: int, *, oracle: bool = True, twin: int | None = None) -> "TakenAnswer":
        """Returns the task's answers to the master inputs, under the generator seed `rng`. With `twin`, a second model
        answers, constructed under that seed, with the same state dict. Without `oracle`, all answers are eager's."""
        return TakenAnswer(self, spec, rng, oracle=oracle, twin=twin)

    def compute(self, spec: Spec, rng: int, *, oracle: bool, twin: int | None) -> Spec:
        """Makes the worker compute an answer, and hold it. Returns its spec."""
        self._attach(self.inputs)
        request = requests.ComputeAnswer(
            inputs=self.inputs.refs, spec=spec, precision=self._precision, rng=rng, twin=twin, oracle=oracle
        )
        self.computed += 1
        return self._ask(request).spec

    def take(self, part: Stretch, *, oracle: bool) -> tuple[Piece, requests.TakenPiece]:
        """Returns a part of the answer that the worker holds."""
        into, found = {}, {}
        for name in ("eager", "policy", "oracle") if oracle else ("eager",):
            if name == "policy" and not self.spec.policy_differs:
                continue
            arena = self._place(f"{name}-piece", self._flat(name, self.largest)).arena
            places = Places(arena, Layout.pack(self._flat(name, part.counts), self.device))
            self._attach(places)
            into[name], found[name] = places.refs, places.tensors()
        taken = self._ask(requests.TakePiece(begins=part.begins, **into))
        if oracle:
            self.oracle_bytes = max(taken.oracle_bytes, self.oracle_bytes or 0)
        eager = found["eager"]
        return Piece(part.begins, eager, found.get("policy", eager), found.get("oracle", eager)), taken

    @property
    def largest(self) -> tuple[int, ...]:
        """The most elements of each output that a piece holds."""
        return tuple(min(PIECE, meta.numel) if self.spec.large else meta.numel for meta in self.spec.outputs)

    def _flat(self, name: str, counts: Sequence[int]) -> list[TensorMeta]:
        """Returns the flat tensors of so many elements of each output."""
        wide = [name == "oracle" and meta.dtype in _FLOATING for meta in self.spec.outputs]
        types = ["float64" if w else meta.dtype for w, meta in zip(wide, self.spec.outputs, strict=True)]
        return [TensorMeta(shape=(n,), dtype=t, strides=(1,)) for n, t in zip(counts, types, strict=True)]

    def rest(self) -> None:
        """Frees device memory that the worker holds for the answers of a large task."""
        if self.spec.large:
            self.computed += 1
            self._ask(FreeMemory())

    def detach(self, places: Places) -> None:
        """Makes the worker unmap an arena that the judge is about to free."""
        with self._blaming("detach"):
            self._worker.detach(places.arena)

    def release(self) -> None:
        """Frees device memory for other tasks: the answer that is held, the masters, which are made again when needed,
        and what the worker holds without need. Raises TaskError."""
        for places in self._places.values():
            if self._worker.alive:
                self.detach(places)
            places.arena.close()
        self._places.clear()
        self.computed += 1
        trim(self.device)
        if self._worker.alive and self.held_bytes is None:
            self.held_bytes = self._ask(FreeMemory()).held_bytes

    def _place(self, purpose: str, metas: Sequence[TensorMeta]) -> Places:
        if purpose not in self._places:
            self._places[purpose] = allocate(f"reference-{purpose}", metas, self.device)
        return self._places[purpose]

    def _attach(self, places: Places) -> None:
        with self._blaming("attach"):
            self._worker.attach(places.arena)

    def _ask(self, request: WorkerRequest[A], timeout_s: float | None = None) -> A:
        synchronize(self.device)
        self.held_bytes = None
        with self._blaming(name_of(request)):
            return self._worker.request(request, timeout_s=timeout_s or self._timeout_s)

    @contextlib.contextmanager
    def _blaming(self, op: str) -> Iterator[None]:
        """Makes a fault of the worker the task's error."""
        try:
            yield
        except WorkerFault as error:
            raise _as_task_error(self._task.name, op, error.fault) from None


class TakenAnswer:
    """An answer that the worker computes. That of a large task is taken piece by piece each time, and computed again
    where it isn't held any more; another is taken whole at once."""

    def __init__(self, reference: Reference, spec: Spec, rng: int, *, oracle: bool, twin: int | None) -> None:
        self._reference, self._with_oracle = reference, oracle
        self._compute = partial(reference.compute, spec, rng, oracle=oracle, twin=twin)
        self._drawn = reference.drawn
        self.spec = self._compute()
        self._number = reference.computed
        self.oracle_kind = ""
        self.way = OracleWay.WHOLE
        self._whole = (
            None if reference.spec.large else self._take(Stretch((0,) * len(self.shapes), reference.largest), oracle)
        )

    @property
    def shapes(self) -> Sequence[Sequence[int]]:
        return [meta.shape for meta in self._reference.spec.outputs]

    def pieces(self, *, only_eager: bool = False) -> Iterator[Piece]:
        """Yields the pieces in order."""
        if self._whole is not None:
            yield self._whole
            return
        assert self._drawn == self._reference.drawn, "the inputs are others now"
        if self._number != self._reference.computed:
            self._compute()
            self._number = self._reference.computed
        for part in parts([meta.numel for meta in self._reference.spec.outputs]):
            yield self._take(part, self._with_oracle and not only_eager)

    def _take(self, part: Stretch, oracle: bool) -> Piece:
        piece, taken = self._reference.take(part, oracle=oracle)
        if taken.way is not None:
            self.oracle_kind, self.way = taken.oracle, taken.way
        return piece


_arena_numbers = itertools.count(1)


def allocate(purpose: str, metas: Sequence[TensorMeta], device: Device, copies: int = 1) -> Places:
    """Returns a new arena for tensors of these metas. Raises OutOfMemory."""
    layout = Layout.pack(metas, device, copies)
    try:
        return Places(Arena(f"{purpose}-{next(_arena_numbers)}", layout.nbytes, device), layout)
    except OutOfDeviceMemory as error:
        raise OutOfMemory(
            f"No memory for {purpose}: {error}", "Free memory on the device or make the task smaller"
        ) from None


@contextlib.contextmanager
def comparing(purpose: str) -> Iterator[None]:
    """Wraps what the judge itself computes on the device. Raises OutOfMemory."""
    try:
        yield
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":
            raise
        said = str(error).partition(". GPU ")[0]  # foreign text: torch's
        raise OutOfMemory(
            f"No memory for {purpose}: {said}", "Free memory on the device or make the task smaller"
        ) from None


def _judgeable(spec: requests.TaskSpec, name: str) -> requests.TaskSpec:
    """Returns the task with dense inputs and weights. Raises TaskError where a tensor can't be judged."""
    metas = (*spec.inputs, *spec.state.values(), *spec.outputs)
    for meta in metas:
        if meta.dtype not in ITEM_BYTES or len(meta.shape) != len(meta.strides) or min(meta.shape, default=0) < 0:
            raise TaskError(f"{name}: a tensor of type {meta.dtype} can't be judged", "Use real numbers or integers")
    if spec.mutated:
        raise TaskError(
            f"{name}: forward changes its input {spec.mutated[0]} in place, which a candidate may not do",
            "Work on a copy: x = x.clone(), or inplace=False",
        )
    if not spec.outputs:
        raise TaskError(f"{name}: forward() returns no tensor", "Return at least one tensor")
    return spec.model_copy(
        update={
            "inputs": tuple(map(dense, spec.inputs)),
            "state": {name: dense(meta) for name, meta in spec.state.items()},
        }
    )


def _as_task_error(name: str, op: str, fault: Fault) -> CudaAgentError:
    if fault.kind is FaultKind.TASK:
        return TaskError(fault.reason, fault.remedy, detail=fault.log_tail)
    if fault.kind is FaultKind.PROTOCOL:
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
