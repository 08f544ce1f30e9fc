"""Times many settings of one candidate inside one worker, for information in a search; never a verdict."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from cuda_agent.core.enums import Device
from cuda_agent.core.records import ScreenReport
from cuda_agent.judge.profile.programs import TimedTask
from cuda_agent.judge.profile.rings import Rings, device_facts, plan_ring, total_bytes
from cuda_agent.judge.profile.schedule import CANDIDATE
from cuda_agent.judge.verify.candidate import CandidateProcess
from cuda_agent.workers.affinity import divided, near_gpu
from cuda_agent.workers.gpulock import gpu_lock, gpu_uuid
from cuda_agent.workers.requests.timed import ScreenConfigs, TriedConfigs, TryConfigs

#: sets of inputs on which settings take turns; each costs a draw.
MOST_SLOTS = 2
#: seconds after which no setting is tried any more.
TRY_SECONDS = 60.0
BASE_SECONDS, SECONDS_EACH = 10.0, 0.5
#: the most share of a timing's budget.
BUDGET_SHARE = 0.5
#: multiples of the L2 cache that are written to empty it.
L2_TIMES = 3


class Screening:
    """One screening of a loaded candidate, which holds no other device memory when it begins. Both steps raise
    WorkerFault where the candidate fails altogether, DeviceError where memory is short, TaskError where the reference
    or eager fails."""

    def __init__(self, session: TimedTask, process: CandidateProcess, configs: Sequence[dict[str, int]]) -> None:
        self._session, self._process, self._configs = session, process, tuple(configs)
        self._times: dict[int, float] = {}
        self._failures: dict[int, str] = {}
        self._out_of_memory = False

    @property
    def hopeful(self) -> list[int]:
        """The places of settings that haven't failed."""
        return [place for place in range(len(self._configs)) if place not in self._failures]

    @property
    def report(self) -> ScreenReport:
        """The median µs of each setting, by the candidate's own worker's events."""
        return ScreenReport(
            configs=self._configs,
            latency_us=tuple(self._times.get(place) for place in range(len(self._configs))),
            failures=self._failures,
            out_of_memory=self._out_of_memory,
        )

    def attempt(self) -> None:
        """Draws weights and calls each setting once. No memory is held afterwards."""
        session, process = self._session, self._process
        session.reference.draw_weights(session.secrets.seed())
        process.load_weights()
        with self._rings(1):
            request = TryConfigs(program=CANDIDATE, configs=self._configs, budget_s=TRY_SECONDS)
            tried = process.worker.request(request, timeout_s=TRY_SECONDS + session.options.call_timeout_s)
        self._take(tried, range(len(self._configs)))
        if process.worker.alive:
            process.release()
        session.reference.release()

    def time(self) -> None:
        """Times the settings that the attempt has left."""
        places, options, kept = self.hopeful, self._session.options, self._session.sharing.timed_cores
        if options.device is Device.CPU:
            # Our own compilers would be foreign load.
            self._session.baselines.wait()
        budget_s = min(BUDGET_SHARE * options.timing_budget_s, BASE_SECONDS + SECONDS_EACH * len(places))
        request = ScreenConfigs(
            program=CANDIDATE,
            configs=tuple(self._configs[place] for place in places),
            budget_s=budget_s,
            flush_bytes=L2_TIMES * device_facts(options.device)[0],
            core=min(divided(kept, near_gpu())[1], default=None) if kept else None,
        )
        with self._rings(MOST_SLOTS), gpu_lock(gpu_uuid(options.device) or "cpu"):
            times = self._process.worker.request(request, timeout_s=budget_s + options.call_timeout_s)
        self._take(times, places)
        claimed = times.latency_us if len(times.latency_us) == len(places) else (None,) * len(places)
        self._times = {
            place: time for place, time in zip(places, claimed, strict=True) if time is not None and time > 0
        }
        self._failures |= {place: "no time" for place in self.hopeful if place not in self._times}

    def _take(self, found: TriedConfigs, places: Sequence[int]) -> None:
        """Keeps the failures of the settings at these places."""
        for index, place in enumerate(places):
            if (reason := found.failures.get(str(index))) is not None:
                self._failures[place] = reason[:500]
        self._out_of_memory |= found.out_of_memory
        if found.device_lost:
            # An error stays on its device.
            self._process.worker.kill()

    @contextmanager
    def _rings(self, most_slots: int) -> Iterator[None]:
        """Gives the candidate's worker sets of inputs for this block."""
        reference, device = self._session.reference, self._session.options.device
        spec = reference.spec
        plan = plan_ring(device, total_bytes(spec.inputs), total_bytes(spec.outputs), *device_facts(device))
        plan = replace(plan, slots=min(plan.slots, most_slots), is_kept=True)
        rings = Rings(plan, spec, device)
        try:
            seeds = [self._session.secrets.seed() for _ in range(plan.slots)]
            reference.draw_slots(seeds, [rings.masters.slot(index) for index in range(plan.slots)])
            rings.add(self._process.worker)
            rings.fill()
            yield
        finally:
            rings.close(reference)
