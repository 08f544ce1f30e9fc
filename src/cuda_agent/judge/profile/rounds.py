"""Timing rounds: candidate and baselines side by side, on fresh secret inputs, every timed output open to a check.

One round: the reference worker draws inputs into the masters. For each program in random order the judge tells its
worker to `GetReady` (it moves to the round's core, warms it up, and neither of them sleeps any more), starts its clock,
copies the masters into that worker's input ring, sends `RunBurst`, wipes the inputs, sends `DeliverOutputs`, and stops
its clock when it has taken secret positions of all outputs: what isn't done by then is wrong or late. A null program
(the baseline worker's runner on nothing) calibrates copies and protocol out of it. Then the candidate's samples are
checked against eager's. Which programs take part, and when it is enough, says `schedule.py`.
"""

import contextlib
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cuda_agent.core.baselines import EAGER
from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device, Verdict
from cuda_agent.core.errors import WorkerError
from cuda_agent.core.records import Violation
from cuda_agent.judge.profile.baselines import NULL
from cuda_agent.judge.profile.bursts import Burst, Round
from cuda_agent.judge.profile.clocks import ClockLog
from cuda_agent.judge.profile.foreign_load import CpuShare, GpuProbe
from cuda_agent.judge.profile.idle_load import IdleLoad
from cuda_agent.judge.profile.programs import CandidateFault, Programs, TimedTask
from cuda_agent.judge.profile.rings import CALL_SECONDS, Ring, output_places
from cuda_agent.judge.profile.schedule import CANDIDATE, PLANNED_SHARE, Schedule, affordable
from cuda_agent.judge.profile.timedcheck import OutputCheck
from cuda_agent.judge.profile.work import ThreadTimes
from cuda_agent.judge.verify.candidate import CandidateProcess
from cuda_agent.judge.verify.eager_bounds import EagerBounds
from cuda_agent.workers.affinity import Cores, near_gpu
from cuda_agent.workers.buffers import synchronize
from cuda_agent.workers.process import Fault
from cuda_agent.workers.requests import FaultKind
from cuda_agent.workers.requests import timed as requests
from cuda_agent.workers.stopwatch import Stopwatch
from cuda_agent.workspace.process import page_faults

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


@dataclass
class Rounds:
    """The rounds of one candidate: warm-up on decoys, bursts, checks of their outputs."""

    session: TimedTask
    options: JudgeOptions
    candidate: CandidateProcess
    bounds: Sequence[EagerBounds]
    #: the candidate derives its weights when it loads them, so a baseline may too.
    frozen: bool = False
    clocks: ClockLog = field(default_factory=lambda: ClockLog(None))
    spent: Stopwatch = field(default_factory=Stopwatch)

    def __post_init__(self) -> None:
        self.started = self._begin = time.monotonic()
        self.reference, self.baselines = self.session.reference, self.session.baselines
        self._rng = random.Random(self.session.secrets.seed())
        self.schedule = Schedule(self.options, self.baselines, self._rng)
        self.check = OutputCheck(self.bounds, self._rng)
        self._active = 1
        self._cores = (
            Cores(self._rng, near_gpu(), self.session.sharing.timed_cores)
            if self.options.device is Device.CUDA
            else None
        )
        self.programs = Programs(
            self.session, self.options, self.candidate, self.frozen, self._cores, self._on_lost, self.spent
        )
        self._core: int | None = None
        #: of torch's generators, for all bursts of a round.
        self._generator_seed = self.session.secrets.seed()
        self._load: GpuProbe | CpuShare | None = None
        self.idle_load = IdleLoad(self.candidate.worker.pid)
        #: what a single round found wrong with the candidate's outputs; ends the rounds.
        self.wrong_output: str | None = None

    def _on_lost(self, name: str) -> None:
        for found in self.rounds:
            found.bursts.pop(name, None)

    def plan(self) -> None:
        """Plans the slots of a round by the time of a call, and runs a burst of each program on decoys."""
        # Compiling, mapping memory and waiting aren't timing, nor is the first use of memory.
        self._begin = time.monotonic() - self.spent["warm"]
        calls = {name: self.programs.call_s(name) for name in (*self.baselines.forms, CANDIDATE)}
        # The first draw met new memory.
        each_s = self.programs.draw(self.programs.plan.slots) / self.programs.plan.slots
        each_s += sum(max(seconds, CALL_SECONDS) for seconds in calls.values() if seconds is not None)
        wanted = self.programs.plan.calls(calls[CANDIDATE] or 0.0, SHORT_BURST if self.schedule.coarse else 1.0)
        self._active = affordable(wanted, max(0.0, self._left_s()) * PLANNED_SHARE / each_s)
        if self._active < self.programs.plan.slots:
            self.programs.draw(self._active)
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
            pid = self.programs.worker(name).pid
            before = page_faults(pid)
            self._burst(name)
            if page_faults(pid) - before < FEW_FAULTS or time.monotonic() > end:
                return

    def run(self) -> None:
        """Runs rounds until the ratios are known, the budget is spent, or a violation ends them."""
        pids = [self.candidate.worker.pid, *(worker.pid for worker in self.programs.workers)]
        self._load = GpuProbe() if self.options.device is Device.CUDA else CpuShare(pids)
        self.idle_load.look()
        with contextlib.nullcontext() if self._cores is None else self._cores.timing():
            while self.wrong_output is None and not self.schedule.is_done(self._left_s()):
                self._next_round(self._load)
        # What is asked after the rounds runs on inputs such as the task draws.
        self.programs.fill()

    def neighbour(self) -> str | None:
        """Returns what other program used the device during the rounds, or None."""
        return None if self._load is None else self._load.neighbour()

    def _next_round(self, load: GpuProbe | CpuShare) -> None:
        with self.spent.on("inputs"):
            self.programs.draw(self._active)
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
        self._generator_seed = self.session.secrets.seed()
        samples: dict[str, list[Any]] = {}
        found = Round()
        names = self.schedule.taking_part()
        if not self.programs.plan.is_kept:
            # The candidate's ring is freed, so it comes before the baselines, whose answers to the same inputs may come
            # to lie in memory that was its own.
            names.sort(key=lambda name: name != CANDIDATE)
        for name in names:
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
        device = self.options.device
        self.check.draw(*output_places(self.reference.spec.outputs, device, self._active), device.value)

    def _burst(self, name: str) -> tuple[Burst | None, list[Any]]:
        """Runs one burst under the judge's clock. Returns it with samples of its outputs."""
        seeds = self.programs.seeds
        if not self.programs.plan.is_kept:
            # The program must not see the round's inputs before its clock runs, so it is warmed up on others.
            self.programs.draw(self._active)
        with self.programs.ring_of(name) as ring:
            if not self.programs.plan.is_kept:
                self.programs.draw(self._active, seeds)
            return (None, []) if ring is None else self._burst_in(ring, name)

    def _burst_in(self, ring: Ring, name: str) -> tuple[Burst | None, list[Any]]:
        fill = ring.prepare_fill(self._active)
        specs = (
            self.programs.specs if self.programs.specs is not None or self._active < self.programs.plan.slots else None
        )
        flush_bytes = self.programs.plan.flush_bytes(self._active)
        request = requests.RunBurst(
            program=name,
            flush_bytes=flush_bytes,
            rng=self._generator_seed,
            specs=None if specs is None else tuple(specs),
        )
        spin_s = SPIN_S[self.options.device]
        if self.programs.ask(name, requests.GetReady(core=self._core, spin_s=spin_s, flush_bytes=flush_bytes)) is None:
            return None, []
        accounts = ThreadTimes(self.programs.worker(name).pid if self.options.device is Device.CPU else None)
        begin = time.perf_counter_ns()
        fill()
        asked = time.perf_counter_ns()
        times = self.programs.ask(name, request, spin_s=spin_s)
        work = accounts.until_now((time.perf_counter_ns() - asked) / 1e3)
        # Copying the outputs here is taken off the clock with the null's; it must not be where they are computed.
        ring.wipe(self._active)
        if times is not None and self.programs.ask(name, requests.DeliverOutputs(), spin_s=spin_s) is None:
            times = None
        # Before anything else is asked of the worker, which could go on with its work meanwhile.
        samples = [] if times is None else self.check.sample(ring.take)
        synchronize(self.options.device)
        wall_us = (time.perf_counter_ns() - begin) / 1e3
        if times is None:
            return None, []
        self.programs.ask(name, requests.ReleaseOutputs())
        return Burst(self._event_times(name, times), wall_us, max(0.0, times.waited_us), work), samples

    def _event_times(self, name: str, times: requests.BurstTimes) -> tuple[float, ...]:
        """Returns the reported time of each slot. Zero and less become a nanosecond; then the judge's clock pays."""
        if len(times.event_us) != self._active:
            if name != CANDIDATE:
                raise WorkerError(f"{self.session.task.name}: the baseline worker sent no times", "Run again")
            said = f"requests.RunBurst: {len(times.event_us)} times instead of {self._active}"
            violation = Violation(rule="protocol", layer="channel", detail=said)
            raise CandidateFault(Fault(Verdict.VIOLATION, said, FaultKind.PROTOCOL, "", (violation,)))
        return tuple(max(time_us, 1e-3) for time_us in times.event_us)

    def _left_s(self) -> float:
        return self._begin + self.options.timing_budget_s - time.monotonic()

    @property
    def rounds(self) -> list[Round]:
        return self.schedule.rounds

    def remarks(self) -> list[str]:
        """Notes for the report."""
        flush = self.programs.plan.flush_bytes(self._active)
        flushed = f", L2 flushed ({flush >> 20} MiB written)" if flush else ""
        said = [OTHERWISE] if self.programs.otherwise else []
        calls = "1 call" if self._active == 1 else f"{self._active} calls"
        return [f"{calls} per round{flushed}", *said, *self.schedule.remarks()]
