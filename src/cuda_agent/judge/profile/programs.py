"""The programs of a timing on the judge's side: their workers, weights, inputs and rings.

A baseline form that fails is left out, and its worker is replaced where it died. A fault of the candidate ends the
timing.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from cuda_agent.core.baselines import EAGER
from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device
from cuda_agent.core.errors import CudaAgentError, TaskError
from cuda_agent.judge.profile.baselines import NULL, Baselines
from cuda_agent.judge.profile.rings import Ring, RingPlan, Rings, device_facts, plan_ring, total_bytes
from cuda_agent.judge.profile.schedule import CANDIDATE
from cuda_agent.judge.sharing import Sharing
from cuda_agent.judge.verify.candidate import CandidateProcess
from cuda_agent.judge.verify.trials import JudgedTask
from cuda_agent.workers.affinity import Cores
from cuda_agent.workers.process import Fault, Worker, WorkerFault
from cuda_agent.workers.requests import A, FaultKind, Spec, WorkerRequest
from cuda_agent.workers.requests import timed as requests
from cuda_agent.workers.requests.baseline import CopyWeights
from cuda_agent.workers.requests.candidate import ForgetBuffers
from cuda_agent.workers.stopwatch import Stopwatch

#: the first program warms up the device; the others follow at once, so they need it only for themselves.
FIRST_WARM_SECONDS = {Device.CUDA: 0.15, Device.CPU: 0.0}
WARM_SECONDS = {Device.CUDA: 0.02, Device.CPU: 0.0}


class CandidateFault(Exception):
    """The candidate's worker failed, and the others are well."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        super().__init__(fault.reason)


class TimedTask(JudgedTask, Protocol):
    """The part of a session with which a candidate is timed."""

    baselines: Baselines
    sharing: Sharing


@dataclass
class Programs:
    """The candidate and the baselines of one timing, from `prepare` to `close`."""

    session: TimedTask
    options: JudgeOptions
    candidate: CandidateProcess
    #: the candidate derives its weights when it loads them, so a baseline may too.
    frozen: bool
    cores: Cores | None
    #: is told of each form that fails.
    on_lost: Callable[[str], None]
    spent: Stopwatch = field(default_factory=Stopwatch)
    #: the candidate's outputs lie in memory otherwise than the reference's, as it says itself.
    otherwise: bool = False
    #: specs of the drawn inputs, where a burst needs them.
    specs: list[Spec] | None = None
    #: seeds of the inputs that the masters hold.
    seeds: list[int] = field(default_factory=list)
    #: the baselines' workers that have the timing's weights and rings.
    workers: tuple[Worker, ...] = ()

    def __post_init__(self) -> None:
        self.reference, self.baselines = self.session.reference, self.session.baselines
        #: None until `prepare` takes memory.
        self._taken: Rings | None = None

    def prepare(self) -> None:
        """Prepares weights, rings and warm programs. Nothing of it is measured."""
        with self.spent.on("weights"):
            self._prepare_weights()
        with self.spent.on("memory"):
            self._take_memory()
        with self.spent.on("warm"):
            self._warm_up()

    def _prepare_weights(self) -> None:
        self.reference.draw_weights(self.session.secrets.seed())
        self._for_candidate(self.candidate.load_weights)
        self._for_candidate(lambda: self.candidate.ask(ForgetBuffers()))
        if self.frozen:
            self.session.progress("profile", "compiling the baseline with constant weights")
            self.baselines.freeze()
        self._load_baseline_weights()

    def _take_memory(self) -> None:
        spec, device = self.reference.spec, self.options.device
        rest = max(0, spec.rest_bytes - total_bytes(list(spec.state.values())))
        plan = plan_ring(
            device, total_bytes(spec.inputs), total_bytes(spec.outputs), *device_facts(device), rest_bytes=rest
        )
        self._taken = Rings(plan, spec, device)
        self._for_candidate(lambda: self._rings.add(self.candidate.worker))
        self._add_baseline_rings()

    def _add_baseline_rings(self) -> None:
        self.workers = self.baselines.workers()
        for worker in self.workers:
            self._rings.add(worker)

    def fill(self) -> None:
        """Copies the masters into all rings that are kept."""
        self._rings.fill()

    @property
    def _rings(self) -> Rings:
        assert self._taken is not None
        return self._taken

    @property
    def plan(self) -> RingPlan:
        return self._rings.plan

    def _warm_up(self) -> None:
        device = self.options.device
        self.draw(self.plan.slots)
        self._rings.fill()
        self.session.progress("profile", "warming up")
        warm_s = FIRST_WARM_SECONDS[device], WARM_SECONDS[device]
        for index, name in enumerate((*self.baselines.forms, CANDIDATE)):
            with self.ring_of(name) as ring:
                if ring is not None:
                    self._warm(name, warm_s[index > 0])

    def _load_baseline_weights(self) -> None:
        state = self.reference.spec.state
        if not state:
            return
        weights = self.reference.weights
        request = CopyWeights(names=tuple(state), weights=weights.refs)
        for worker in self.baselines.workers():
            try:
                worker.attach(weights.arena)
                worker.request(request, timeout_s=self.options.call_timeout_s)
                worker.detach(weights.arena)
            except WorkerFault as error:
                raise self._baseline_error(EAGER, error) from None

    @contextlib.contextmanager
    def ring_of(self, name: str) -> Iterator[Ring | None]:
        """Yields the ring of a program's worker, or None where a baseline form fails and is left out. Where rings
        aren't kept, it holds what the masters hold, and the program is warm. Raises what `ask` raises."""
        with contextlib.ExitStack() as stack:
            try:
                ring = stack.enter_context(self._rings.of(self.worker(name)))
            except WorkerFault as error:
                self._blame(name, error)
                yield None
                return
            lost = not self.plan.is_kept and not self._warm(name, 0.0)
            yield None if lost else ring

    def _warm(self, name: str, seconds: float) -> bool:
        """Calls the program for some seconds. Returns whether it takes part from here on."""
        request = requests.WarmUp(program=name, calls=1, seconds=seconds)
        warmed = self.ask(name, request, timeout_s=self.options.compile_baseline_timeout_s)
        if name == CANDIDATE and warmed is not None and warmed.otherwise:
            self.otherwise = True
        return warmed is not None

    def call_s(self, name: str) -> float | None:
        """Returns the seconds of one call, or None where the form failed."""
        with self.ring_of(name) as ring:
            found = None if ring is None else self.ask(name, requests.TimeQueue(program=name, calls=1))
        return None if found is None else max(found.us, 0.0) / 1e6

    def draw(self, slots: int, seeds: list[int] | None = None) -> float:
        """Draws inputs for the first slots, by default fresh ones, and returns the seconds that it took. Plain values
        that change between draws are sent with the burst."""
        masters, begin = self._rings.masters, time.monotonic()
        self.seeds = [self.session.secrets.seed() for _ in range(slots)] if seeds is None else seeds
        specs = self.reference.draw_slots(self.seeds, [masters.slot(i) for i in range(slots)])
        usual = self.reference.spec.inputs_spec
        changed = any(spec != usual for spec in specs)
        self.specs = specs if changed or slots < self.plan.slots else None
        return time.monotonic() - begin

    def worker(self, name: str) -> Worker:
        return self.candidate.worker if name == CANDIDATE else self.baselines.worker_of(name)

    def ask(
        self, name: str, request: WorkerRequest[A], timeout_s: float | None = None, spin_s: float = 0.0
    ) -> A | None:
        """Returns the worker's answer, or None where a baseline form failed and is left out. Raises CandidateFault,
        TaskError."""
        worker = self.worker(name)
        try:
            return worker.request(request, timeout_s=timeout_s or self.options.call_timeout_s, spin_s=spin_s)
        except WorkerFault as error:
            self._blame(name, error)
            return None

    def _blame(self, name: str, error: WorkerFault) -> None:
        """Leaves out a baseline form that failed. Raises CandidateFault, TaskError for what can't be left out."""
        if name == CANDIDATE:
            raise CandidateFault(error.fault) from None
        if name in (EAGER, NULL):
            raise self._baseline_error(name, error) from None
        self._lose(name, error)

    def _lose(self, name: str, error: WorkerFault) -> None:
        """Leaves out a form that failed when it ran. If its worker died, that is replaced."""
        self.baselines.fail(name, error.fault.reason)
        self.on_lost(name)
        if error.fault.kind is FaultKind.DEVICE:
            self.worker(name).kill()
        with contextlib.nullcontext() if self.cores is None else self.cores.elsewhere():
            workers = self.baselines.workers()
            if workers != self.workers and self.frozen:
                self.baselines.freeze()
        if workers != self.workers:
            for worker in self.workers:
                self._rings.drop(worker)
            self._load_baseline_weights()
            self._add_baseline_rings()

    def _for_candidate(self, work: Callable[[], Any]) -> None:
        try:
            work()
        except WorkerFault as error:
            raise CandidateFault(error.fault) from None

    def _baseline_error(self, name: str, error: WorkerFault) -> CudaAgentError:
        cause = f"{self.session.task.name}: timing {name} failed: {error.fault.reason}"
        return TaskError(cause, error.fault.remedy or "Correct or shrink the task", detail=error.fault.log_tail)

    def close(self) -> None:
        """Frees rings and masters. Ended workers need nothing."""
        if self._taken is not None:
            self._taken.close(self.reference)
            self._taken = None
