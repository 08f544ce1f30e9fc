"""Times one verified candidate beside the baselines."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from cuda_agent.core import intervals
from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device, Verdict
from cuda_agent.core.records import ProfileReport, Timing, VerifyReport, Violation
from cuda_agent.judge.guard.operators import TIMED, OperatorLog
from cuda_agent.judge.profile import timing, work
from cuda_agent.judge.profile.baselines import Baselines
from cuda_agent.judge.profile.bursts import medians
from cuda_agent.judge.profile.foreign_load import wait_for_quiet
from cuda_agent.judge.profile.programs import CandidateFault, TimedTask
from cuda_agent.judge.profile.rounds import Rounds
from cuda_agent.judge.profile.schedule import CANDIDATE
from cuda_agent.judge.verify.candidate import CandidateProcess
from cuda_agent.judge.verify.eager_bounds import eager_bounds
from cuda_agent.workers.gpulock import gpu_lock, gpu_uuid
from cuda_agent.workers.process import Fault
from cuda_agent.workers.requests import FaultKind
from cuda_agent.workers.requests.timed import ExtraFigures, MeasureExtras, RecordBurst, TimeQueue

#: seconds for `queued_us`, which is only for information.
QUEUE_SECONDS = 0.02


@dataclass(frozen=True)
class Profiled:
    """The end of a timing: a report, violations, or a fault, which is the candidate's or a TIMING_VOID."""

    report: ProfileReport | None = None
    violations: tuple[Violation, ...] = ()
    fault: Fault | None = None


def profile_candidate(
    session: TimedTask,
    candidate: CandidateProcess,
    verified: VerifyReport,
    *,
    floor: float,
    options: JudgeOptions | None = None,
    torch_computes: bool = False,
) -> Profiled:
    """Times a verified, loaded candidate. `verified` and `floor` (the smallest relative error that counts) say how near
    its timed outputs must stay to eager's. `options` replace the session's. With `torch_computes` the program may be
    torch's own, as in an A/A test.

    Raises TaskError where eager fails, DeviceError where memory is short or the GPU's lock can't be had. A candidate's
    failure is in the result.
    """
    options, baselines = options or session.options, session.baselines
    session.progress("profile", "waiting for the baselines")
    baselines.wait()
    uuid = gpu_uuid(options.device)

    def waiting(holder: str) -> None:
        session.progress("profile", f"waiting for {holder} to finish its timing")

    with gpu_lock(uuid or "cpu", waiting=waiting):
        # On a CPU this comes first, since it takes longer than warm caches stay warm.
        load = wait_for_quiet(options.device, uuid) if options.device is Device.CPU else None
        rounds = Rounds(
            session, options, candidate, eager_bounds(session.task, verified.trials, floor), verified.frozen
        )
        rounds.clocks.uuid = uuid
        rounds.clocks.read()
        far: dict[str, float] = {}
        try:
            rounds.programs.prepare()
            found = _timed(rounds, baselines, options.device, load, torch_computes=torch_computes)
            far = rounds.schedule.far() if found.report is not None else {}
            return found
        except CandidateFault as error:
            return Profiled(fault=error.fault)
        finally:
            rounds.programs.close()
            for name, times in far.items():
                baselines.retire(name, times)


def _timed(rounds: Rounds, baselines: Baselines, device: Device, load: str | None, *, torch_computes: bool) -> Profiled:
    if device is Device.CUDA:
        load = wait_for_quiet(device, rounds.clocks.uuid)
        if load is not None:
            return Profiled(fault=Fault(Verdict.TIMING_VOID, load, FaultKind.FOREIGN_LOAD))
    with rounds.spent.on("plan"):
        rounds.plan()
    rounds.run()
    rounds.clocks.read()
    unasked = () if torch_computes else _computed_by_torch(rounds, device)
    return Profiled(violations=unasked) if unasked else _concluded(rounds, baselines, device, load)


def _concluded(rounds: Rounds, baselines: Baselines, device: Device, load: str | None) -> Profiled:
    """Returns the result of the rounds. `load` is the foreign load when they began."""
    violations, neighbour = _violations(rounds, baselines, device), rounds.neighbour()
    # On a crowded CPU the scheduler puts whole time slices between two readings of a clock.
    only_clocks = device is Device.CPU and all(violation.rule in ("clock", "uneven") for violation in violations)
    if violations and not (neighbour and only_clocks):
        return Profiled(violations=violations)
    if neighbour is not None and (violations or device is Device.CUDA):
        said = "; ".join([f"during the rounds {neighbour}", *(violation.detail for violation in violations)])
        return Profiled(fault=Fault(Verdict.TIMING_VOID, said, FaultKind.FOREIGN_LOAD))
    notes = [f"during the rounds {neighbour}"] if neighbour else [load] if load else []
    return Profiled(report=_report(rounds, baselines, notes))


def _violations(rounds: Rounds, baselines: Baselines, device: Device) -> tuple[Violation, ...]:
    """Returns what timed outputs and clocks convict the candidate of."""
    found = {
        "timed_output": rounds.wrong_output or rounds.check.verdict(),
        "clock": timing.disagreement(rounds.rounds, CANDIDATE, device, baselines.forms),
        "work": work.disagreement(rounds.rounds, CANDIDATE, tuple(baselines.forms)),
        "uneven": timing.unevenness(rounds.rounds, CANDIDATE, baselines.forms),
        "idle_load": rounds.idle_load.verdict(),
    }
    return tuple(Violation(rule=rule, layer="timing", detail=said) for rule, said in found.items() if said is not None)


def _computed_by_torch(rounds: Rounds, device: Device) -> tuple[Violation, ...]:
    """Returns what the dispatcher records in one more burst, against candidates that leave the arithmetic to torch only
    after verification."""
    log = OperatorLog(device, seeded=rounds.reference.spec.seeded)
    last = rounds.rounds[-1].bursts[CANDIDATE]
    with rounds.programs.ring_of(CANDIDATE):
        record = rounds.programs.ask(CANDIDATE, RecordBurst(program=CANDIDATE, calls=len(last.event_us)))
    assert record is not None
    log.note(record, TIMED)
    return log.violations()


def _report(rounds: Rounds, baselines: Baselines, notes: Sequence[str]) -> ProfileReport:
    with rounds.spent.on("after"):
        mine = _record(rounds, CANDIDATE)
        records = {name: _record(rounds, name) for name in baselines.forms if rounds.schedule.has(name)}
    # A form may have failed in `TimeQueue`, after its rounds.
    records = {name: record for name, record in records.items() if name in baselines.forms}
    return ProfileReport(
        candidate=mine,
        baselines=records,
        ratios={
            name: timing.ratio(rounds.rounds, name, CANDIDATE, tuple(baselines.forms), rounds.options.device)
            for name in records
        },
        matched=rounds.schedule.matched(),
        rounds=len(rounds.rounds),
        checked_outputs=rounds.check.checked,
        stop=rounds.options.timing_stop,
        failed_baselines=dict(baselines.failed),
        compiled={name: report for name, report in baselines.compiled.items() if name in records},
        clocks=rounds.clocks.summary(),
        throttle_reasons=rounds.clocks.throttle_reasons(),
        notes=(*notes, *rounds.remarks(), *_remarks(baselines)),
        duration_s=time.monotonic() - rounds.started,
        parts_s=dict(rounds.spent),
    )


def _remarks(baselines: Baselines) -> list[str]:
    """Returns the notes on the rounds, and why a form has no time."""
    said = "wasn't timed: an earlier timing of this task found it {:.1f} times slower than the fastest matched form"
    early = [f"{name} wasn't prepared: {why}" for name, why in baselines.left_out.items()]
    return [*early, *(f"{name} {said.format(times)}" for name, times in baselines.retired.items())]


def _record(rounds: Rounds, name: str) -> Timing:
    typical_s = intervals.median(medians(rounds.rounds, name)) / 1e6
    calls = int(max(1, min(200, QUEUE_SECONDS / max(typical_s, 1e-6))))
    shown = name == CANDIDATE or name in rounds.schedule.needed()
    with rounds.programs.ring_of(name) as ring:
        queued = rounds.programs.ask(name, TimeQueue(program=name, calls=calls)) if shown and ring is not None else None
        # A profiler leaves its hooks behind, so it runs only in the worker that ends after this. Baselines are timed
        # again.
        request = MeasureExtras(program=name, busy=name == CANDIDATE)
        extras = (None if ring is None else rounds.programs.ask(name, request)) or ExtraFigures()
    return timing.timing(
        rounds.rounds,
        name,
        device=rounds.options.device,
        trusted=tuple(rounds.baselines.forms),
        queued_us=None if queued is None else queued.us or None,
        busy_us=extras.busy_us or None,
        peak_memory_bytes=extras.peak_memory_bytes,
    )
