"""Timing rounds: candidate and baselines side by side, on fresh secret inputs, every timed output open to a check.

One round: the reference worker draws inputs into the masters. For each program in random order the judge tells its
worker to `GetReady` (it moves to the round's core, warms it up, and neither of them sleeps any more), starts its clock,
copies the masters into that worker's input ring, sends `RunBurst`, wipes the inputs, sends `DeliverOutputs`, and stops
its clock when it has taken secret positions of all outputs: what isn't done by then is wrong or late. A null program
(the baseline worker's runner on nothing) calibrates copies and protocol out of it. Then the candidate's samples are
checked against eager's. Which programs take part, and when it is enough, says `schedule.py`.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from cuda_agent.core.baselines import EAGER
from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device, Verdict
from cuda_agent.core.errors import CudaAgentError, TaskError, WorkerError
from cuda_agent.core.records import Violation
from cuda_agent.judge.profile.baselines import NULL, Baselines
from cuda_agent.judge.profile.clocks import ClockLog
from cuda_agent.judge.profile.foreign_load import LoadMonitor
from cuda_agent.judge.profile.idle_load import IdleLoad
from cuda_agent.judge.profile.rings import (
    CALL_SECONDS,
    Masters,
    Ring,
    RingPlan,
    device_facts,
    plan_ring,
    total_bytes,
)
from cuda_agent.judge.profile.schedule import CANDIDATE, PLANNED_SHARE, Schedule, affordable
from cuda_agent.judge.profile.timedcheck import Bounds, OutputCheck
from cuda_agent.judge.profile.timing import Burst, Round
from cuda_agent.judge.sharing import Sharing
from cuda_agent.judge.verify.candidate import CandidateProcess
from cuda_agent.judge.verify.trials import JudgedTask
from cuda_agent.workers.affinity import Cores, near_gpu
from cuda_agent.workers.buffers import synchronize
from cuda_agent.workers.process import Fault, Worker, WorkerFault
from cuda_agent.workers.requests import A, FaultKind, Spec, WorkerRequest
from cuda_agent.workers.requests import timed as requests
from cuda_agent.workers.requests.baseline import CopyWeights
from cuda_agent.workers.requests.candidate import ForgetBuffers
from cuda_agent.workers.stopwatch import Stopwatch
from cuda_agent.workspace.process import page_faults

#: the first program warms up the device; the others follow at once, so they need it only for themselves.
FIRST_WARM_SECONDS = {Device.CUDA: 0.15, Device.CPU: 0.0}
WARM_SECONDS = {Device.CUDA: 0.02, Device.CPU: 0.0}
#: at the most so many bursts on decoys before the first round, of each program: until none of its memory is new to it.
#: What a call gives back isn't always where the next one looks, so that takes a few.
MOST_DECOYS = {Device.CUDA: 1, Device.CPU: 8}
FEW_FAULTS = 64
#: share of a burst's usual calls, where it need only be plain on which side of a milestone a ratio lies.
SHORT_BURST = 0.12
OTHERWISE = (
    "outputs lie in memory otherwise than the reference's: copying them into its layout counts as part of a call"
)
#: so long neither side of a burst sleeps while it waits for the other. On a cpu the program under test has the cores.
SPIN_S = {Device.CUDA: 0.25, Device.CPU: 0.0}


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
class Rounds:
    """The rounds of one candidate: rings, warm-up on decoys, bursts, checks of their outputs."""

    session: TimedTask
    options: JudgeOptions
    candidate: CandidateProcess
    bounds: Bounds
    #: the candidate derives its weights when it loads them, so a baseline may too.
    frozen: bool = False
    clocks: ClockLog = field(default_factory=lambda: ClockLog(None))
    spent: Stopwatch = field(default_factory=Stopwatch)

    def __post_init__(self) -> None:
        self._started = self._begin = time.monotonic()
        self.reference, self.baselines = self.session.reference, self.session.baselines
        self._rng = random.Random(self.session.secrets.seed())
        self.schedule = Schedule(self.options, self.baselines, self._rng)
        self.check = OutputCheck(self.bounds, self._rng)
        self._rings: dict[Worker, Ring] = {}
        self._masters: Masters | None = None
        self._plan = RingPlan(1, 1, 0)
        self._active = 1
        self._specs: list[Spec] | None = None
        self._cores = (
            Cores(self._rng, near_gpu(), self.session.sharing.timed_cores)
            if self.options.device is Device.CUDA
            else None
        )
        self._core: int | None = None
        self._load: LoadMonitor | None = None
        self.idle_load = IdleLoad(self.candidate.worker.pid)
        #: what a single round found wrong with the candidate's outputs; ends the rounds.
        self.wrong_output: str | None = None
        #: the candidate's outputs lie in memory otherwise than the reference's, as it says itself.
        self._otherwise = False

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
        l2_bytes, free = device_facts(device)
        self._plan = plan_ring(
            device,
            total_bytes(spec.inputs),
            total_bytes(spec.outputs),
            l2_bytes,
            free,
            max(0, spec.rest_bytes - total_bytes(list(spec.state.values()))),
        )
        self._masters = Masters(spec.inputs, self._plan.slots, device)
        self._for_candidate(lambda: self._add_rings(self.candidate.worker))
        self._add_rings(*self.baselines.workers())

    def _warm_up(self) -> None:
        device = self.options.device
        self._draw(self._plan.slots)
        for ring in self._rings.values():
            ring.fill(self._plan.slots)
        self.session.progress("profile", "warming up")
        warm_s = FIRST_WARM_SECONDS[device], WARM_SECONDS[device]
        for index, name in enumerate((*self.baselines.forms, CANDIDATE)):
            self._warm(name, warm_s[index > 0])

    def plan(self) -> None:
        """Plans the slots of a round by the time of a call, and runs a burst of each program on decoys."""
        # Compiling, mapping memory and waiting aren't timing, nor is the first use of memory.
        self._begin = time.monotonic() - self.spent["warm"]
        calls = {name: self._call_s(name) for name in (*self.baselines.forms, CANDIDATE)}
        # The first draw met new memory.
        each_s = self._draw(self._plan.slots) / self._plan.slots
        each_s += sum(max(seconds, CALL_SECONDS) for seconds in calls.values() if seconds is not None)
        wanted = self._plan.calls(calls[CANDIDATE] or 0.0, SHORT_BURST if self.schedule.coarse else 1.0)
        self._active = affordable(wanted, max(0.0, self._left_s()) * PLANNED_SHARE / each_s)
        if self._active < self._plan.slots:
            self._draw(self._active)
        self._choose_positions()
        begin = time.monotonic()
        for name in (*self.baselines.forms, CANDIDATE):
            self._on_decoys(name)
        self._begin += time.monotonic() - begin

    def _on_decoys(self, name: str) -> None:
        end = time.monotonic() + self.options.timing_budget_s / 2
        for _ in range(MOST_DECOYS[self.options.device]):
            if name != CANDIDATE and name not in self.baselines.forms:
                return
            pid = self._worker(name).pid
            before = page_faults(pid)
            self._burst(name)
            if page_faults(pid) - before < FEW_FAULTS or time.monotonic() > end:
                return

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

    def _add_rings(self, *workers: Worker) -> None:
        spec, masters, slots = self.reference.spec, self._masters, self._plan.slots
        assert masters is not None
        for worker in workers:
            self._rings[worker] = Ring(worker, masters, spec.inputs_spec, spec.inputs, spec.outputs, slots)

    def _warm(self, name: str, seconds: float) -> None:
        request = requests.WarmUp(program=name, calls=1, seconds=seconds)
        warmed = self.ask(name, request, timeout_s=self.options.compile_baseline_timeout_s)
        if name == CANDIDATE and warmed is not None and warmed.otherwise:
            self._otherwise = True

    def _call_s(self, name: str) -> float | None:
        """Returns the seconds of one call, or None where the form failed."""
        found = self.ask(name, requests.TimeQueue(program=name, calls=1))
        return None if found is None else max(found.us, 0.0) / 1e6

    def run(self) -> None:
        """Runs rounds until the ratios are known, the budget is spent, or a violation ends them."""
        self._load = LoadMonitor(self.options.device, [worker.pid for worker in self._rings])
        self.idle_load.look()
        with contextlib.nullcontext() if self._cores is None else self._cores.timing():
            while self.wrong_output is None and not self.schedule.is_done(self._left_s()):
                self._next_round(self._load)
        # What is asked after the rounds runs on inputs such as the task draws.
        for ring in self._rings.values():
            ring.fill(self._plan.slots)

    def neighbour(self) -> str | None:
        """Returns what other program used the device during the rounds, or None."""
        return None if self._load is None else self._load.neighbour()

    def _next_round(self, load: LoadMonitor) -> None:
        with self.spent.on("inputs"):
            self._draw(self._active)
        self._core = self._cores.pick() if self._cores is not None else None
        found = self._one_round()
        if found is not None:
            with self.spent.on("checks"):
                self.schedule.add(found)
                load.look()
                self.idle_load.look()
                self.clocks.watch()
            self.session.progress("profile", self.schedule.said())

    def _one_round(self) -> Round | None:
        """Returns a round, or None where a baseline failed meanwhile; the round is then repeated without it."""
        self._choose_positions()
        samples: dict[str, list[Any]] = {}
        found = Round()
        for name in self.schedule.taking_part():
            busy = self.idle_load.busy() if name == CANDIDATE else contextlib.nullcontext()
            with self.spent.on("bursts"), busy:
                burst, samples[name] = self._burst(name)
            if burst is None:
                return None
            found.bursts[name] = burst
        found.null = found.bursts.pop(NULL, None)
        with self.spent.on("checks"):
            self.wrong_output = self.check.compare(samples[CANDIDATE], samples[EAGER])
        return found

    def _choose_positions(self) -> None:
        """Chooses before the round, since it takes longer than looking."""
        ring = next(iter(self._rings.values()))
        self.check.draw(*ring.output_places(self._active), self.options.device.value)

    def _burst(self, name: str) -> tuple[Burst | None, list[Any]]:
        """Runs one burst under the judge's clock. Returns it with samples of its outputs."""
        worker = self._worker(name)
        ring = self._rings[worker]
        fill = ring.prepare_fill(self._active)
        specs = self._specs if self._specs is not None or self._active < self._plan.slots else None
        flush_bytes = self._plan.flush_bytes(self._active)
        request = requests.RunBurst(
            program=name, flush_bytes=flush_bytes, specs=None if specs is None else tuple(specs)
        )
        spin_s = SPIN_S[self.options.device]
        if self.ask(name, requests.GetReady(core=self._core, spin_s=spin_s, flush_bytes=flush_bytes)) is None:
            return None, []
        begin = time.perf_counter_ns()
        fill()
        times = self.ask(name, request, spin_s=spin_s)
        # Copying the outputs here is taken off the clock with the null's; it must not be where they are computed.
        ring.wipe(self._active)
        if times is not None and self.ask(name, requests.DeliverOutputs(), spin_s=spin_s) is None:
            times = None
        # Before anything else is asked of the worker, which could go on with its work meanwhile.
        samples = [] if times is None else self.check.sample(ring.take)
        synchronize(self.options.device)
        wall_us = (time.perf_counter_ns() - begin) / 1e3
        if times is None:
            return None, []
        self.ask(name, requests.ReleaseOutputs())
        return Burst(self._event_times(name, times), wall_us, max(0.0, times.waited_us)), samples

    def _event_times(self, name: str, times: requests.BurstTimes) -> tuple[float, ...]:
        """Returns the reported time of each slot. Zero and less become a nanosecond; then the judge's clock pays."""
        if len(times.event_us) != self._active:
            if name != CANDIDATE:
                raise WorkerError(f"{self.session.task.name}: the baseline worker sent no times", "Run again")
            said = f"requests.RunBurst: {len(times.event_us)} times instead of {self._active}"
            violation = Violation(rule="protocol", layer="channel", detail=said)
            raise CandidateFault(Fault(Verdict.VIOLATION, said, FaultKind.PROTOCOL, "", (violation,)))
        return tuple(max(time_us, 1e-3) for time_us in times.event_us)

    def _draw(self, slots: int) -> float:
        """Draws fresh inputs for the first slots and returns the seconds that it took. Plain values that change between
        draws are sent with the burst."""
        assert self._masters is not None
        begin = time.monotonic()
        seeds = [self.session.secrets.seed() for _ in range(slots)]
        specs = self.reference.draw_slots(seeds, [self._masters.slot(i) for i in range(slots)])
        usual = self.reference.spec.inputs_spec
        changed = any(spec != usual for spec in specs)
        self._specs = specs if changed or slots < self._plan.slots else None
        return time.monotonic() - begin

    def _worker(self, name: str) -> Worker:
        return self.candidate.worker if name == CANDIDATE else self.baselines.worker_of(name)

    def ask(
        self, name: str, request: WorkerRequest[A], timeout_s: float | None = None, spin_s: float = 0.0
    ) -> A | None:
        """Returns the worker's answer, or None where a baseline form failed and is left out. Raises CandidateFault,
        TaskError."""
        worker = self._worker(name)
        try:
            return worker.request(request, timeout_s=timeout_s or self.options.call_timeout_s, spin_s=spin_s)
        except WorkerFault as error:
            if name == CANDIDATE:
                raise CandidateFault(error.fault) from None
            if name in (EAGER, NULL):
                raise self._baseline_error(name, error) from None
            self._lose(name, error)
            return None

    def _lose(self, name: str, error: WorkerFault) -> None:
        """Leaves out a form that failed when it ran. If its worker died, that is replaced."""
        self.baselines.fail(name, error.fault.reason)
        for found in self.rounds:
            found.bursts.pop(name, None)
        old = self._worker(name)
        if error.fault.kind is FaultKind.DEVICE:
            old.kill()
        if not old.alive:
            # Those that begin anew have new workers throughout.
            for worker in [worker for worker in self._rings if worker is not self.candidate.worker]:
                self._rings.pop(worker).close()
            with contextlib.nullcontext() if self._cores is None else self._cores.elsewhere():
                self.baselines.wait()
                if self.frozen:
                    self.baselines.freeze()
            self._load_baseline_weights()
            self._add_rings(*self.baselines.workers())

    def _for_candidate(self, work: Callable[[], Any]) -> None:
        try:
            work()
        except WorkerFault as error:
            raise CandidateFault(error.fault) from None

    def _baseline_error(self, name: str, error: WorkerFault) -> CudaAgentError:
        cause = f"{self.session.task.name}: timing {name} failed: {error.fault.reason}"
        return TaskError(cause, error.fault.remedy or "Correct or shrink the task", detail=error.fault.log_tail)

    def _left_s(self) -> float:
        return self._begin + self.options.timing_budget_s - time.monotonic()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started

    @property
    def rounds(self) -> list[Round]:
        return self.schedule.rounds

    def remarks(self) -> list[str]:
        """Notes for the report."""
        flush = self._plan.flush_bytes(self._active)
        flushed = f", L2 flushed ({flush >> 20} MiB written)" if flush else ""
        said = [OTHERWISE] if self._otherwise else []
        return [f"{self._active} calls per round{flushed}", *said, *self.schedule.remarks()]

    def close(self) -> None:
        """Frees rings and masters. Ended workers need nothing."""
        for ring in self._rings.values():
            ring.close()
        self._rings.clear()
        if self._masters is not None:
            self.reference.detach(self._masters.places)
            self._masters.places.arena.close()
            self._masters = None
