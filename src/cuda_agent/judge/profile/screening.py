"""Times many settings of one candidate inside one worker, for information in a search; never a verdict."""

from __future__ import annotations

from dataclasses import replace

from cuda_agent.core.enums import Device
from cuda_agent.core.records import ScreenReport
from cuda_agent.judge.profile.programs import TimedTask
from cuda_agent.judge.profile.rings import Rings, device_facts, plan_ring, total_bytes
from cuda_agent.judge.profile.schedule import CANDIDATE
from cuda_agent.judge.verify.candidate import CandidateProcess
from cuda_agent.workers.affinity import divided, near_gpu
from cuda_agent.workers.gpulock import gpu_lock, gpu_uuid
from cuda_agent.workers.requests.timed import ScreenConfigs, ScreenTimes

#: sets of inputs on which settings take turns; each costs a draw.
MOST_SLOTS = 2
BASE_SECONDS, SECONDS_EACH = 10.0, 0.5
#: the most share of a timing's budget.
BUDGET_SHARE = 0.5
#: multiples of the L2 cache that are written to empty it.
L2_TIMES = 3


def prepare(session: TimedTask, process: CandidateProcess) -> None:
    """Draws weights for a loaded candidate, which holds no other device memory then. Raises WorkerFault, DeviceError,
    TaskError."""
    session.reference.draw_weights(session.secrets.seed())
    process.load_weights()
    process.release()
    session.reference.release()


def screen(session: TimedTask, process: CandidateProcess, configs: list[dict[str, int]]) -> ScreenReport:
    """Returns the median µs of each setting of a prepared candidate, by its own worker's events.

    Raises WorkerFault where the candidate fails altogether, DeviceError where memory is short, TaskError where the
    reference or eager fails.
    """
    options, reference, kept = session.options, session.reference, session.sharing.timed_cores
    if options.device is Device.CPU:
        # Our own compilers would be foreign load.
        session.baselines.wait()
    spec, device = reference.spec, options.device
    l2_bytes, *memory = device_facts(device)
    plan = plan_ring(device, total_bytes(spec.inputs), total_bytes(spec.outputs), l2_bytes, *memory)
    plan = replace(plan, slots=min(plan.slots, MOST_SLOTS), is_kept=True)
    budget_s = min(BUDGET_SHARE * options.timing_budget_s, BASE_SECONDS + SECONDS_EACH * len(configs))
    request = ScreenConfigs(
        program=CANDIDATE,
        configs=tuple(configs),
        budget_s=budget_s,
        flush_bytes=L2_TIMES * l2_bytes,
        core=min(divided(kept, near_gpu())[1], default=None) if kept else None,
    )
    rings = Rings(plan, spec, device)
    try:
        slots = range(plan.slots)
        reference.draw_slots([session.secrets.seed() for _ in slots], [rings.masters.slot(index) for index in slots])
        rings.add(process.worker)
        rings.fill()
        with gpu_lock(gpu_uuid(device) or "cpu"):
            times = process.worker.request(request, timeout_s=budget_s + options.call_timeout_s)
        if times.device_lost:
            # An error stays on its device.
            process.worker.kill()
        return _report(times, configs)
    finally:
        rings.close(reference)


def _report(times: ScreenTimes, configs: list[dict[str, int]]) -> ScreenReport:
    """Returns the worker's report. A setting whose time isn't positive has none."""
    claimed = times.latency_us if len(times.latency_us) == len(configs) else (None,) * len(configs)
    good = tuple(time if time is not None and time > 0 else None for time in claimed)
    said = {i: times.failures.get(str(i), "no time")[:500] for i, time in enumerate(good) if time is None}
    return ScreenReport(configs=tuple(configs), latency_us=good, failures=said, out_of_memory=times.out_of_memory)
