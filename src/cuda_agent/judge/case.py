"""Takes one candidate through the phases guard, build, verify and profile, and records the result."""

import contextlib
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from cuda_agent.core.config import JudgeOptions, Regression
from cuda_agent.core.enums import Device, Phase, Precision, Signal, Verdict
from cuda_agent.core.records import (
    BuildReport,
    Candidate,
    Evaluation,
    KernelReport,
    ProfileReport,
    Task,
    VerifyReport,
    Violation,
)
from cuda_agent.core.stack import read_stack
from cuda_agent.judge import guard
from cuda_agent.judge.build.extension import Progress, build_extension, silent
from cuda_agent.judge.guard.kernels import judge_kernels
from cuda_agent.judge.profile import roofline
from cuda_agent.judge.profile.profile import profile_candidate
from cuda_agent.judge.resources import Resources
from cuda_agent.judge.sharing import DeviceUse
from cuda_agent.judge.verify.admission import SIGNAL_NOTES
from cuda_agent.judge.verify.candidate import CandidateProcess
from cuda_agent.judge.verify.trials import Verification, failing
from cuda_agent.workers.process import Fault, WorkerFault
from cuda_agent.workers.requests import FaultKind
from cuda_agent.workspace.sandbox import resolve_level

#: attempts of a timing that foreign work voided, each in a fresh worker.
ATTEMPTS = 3
#: the place that nvcc and g++ name before an error.
_PLACE = re.compile(r"\(\d+\): (?:\w+ )?error|:\d+:(?:\d+:)? (?:\w+ )?error")
#: rules of a timing that undetected foreign load may break once.
_BY_CLOCK = ("clock", "work", "uneven")


class _Decided(Exception):
    """Ends the case, since it has its verdict."""


class Case:
    """One candidate in the phases. It collects the contents of its `Evaluation`.

    `build` needs neither a device nor a session, so it may run in another process (a case can be pickled). `judge` does
    the rest. Both raise faults that aren't the candidate's.
    """

    def __init__(
        self, task: Task, options: JudgeOptions, candidate: Candidate, build_cache: Path | None = None
    ) -> None:
        self.task = task
        self._build_cache = build_cache
        self._options = options
        self._candidate = candidate
        self._phase = Phase.SNAPSHOT
        self._verdict = Verdict.TIMING_VOID
        self._reason = self._log_tail = ""
        self._build: BuildReport | None = None
        #: the built library, alone in its folder; None before the build, or where it failed.
        self.library: Path | None = None
        self._verify: VerifyReport | None = None
        self._profile: ProfileReport | None = None
        self._violations: list[Violation] = []
        self._operators: dict[str, int] = {}
        self._kernels: KernelReport | None = None
        self._notes: list[str] = []
        self._failing: Regression | None = None
        self._comparison: str | None = None
        self._signal: Signal | None = None
        self._own_kernels: frozenset[str] = frozenset()
        #: whether a clock alone has spoken against it.
        self._suspected = False
        self._durations: dict[str, float] = {}
        #: whether it has its verdict, so that nothing further is done.
        self.decided = False

    def build(self, progress: Progress = silent, failed: BuildReport | None = None) -> None:
        """Runs guard and compiler. `failed` is a known report of a failed build of these sources. Raises DeviceError,
        StoreError, SandboxError."""
        with contextlib.suppress(_Decided):
            with self._enter(Phase.GUARD, progress):
                if self._options.comparison is not None and guard.is_comparison(self._candidate):
                    self._compare_only(self._options.comparison)
                    return
                self._convict(guard.check_texts(self._candidate))
            with self._enter(Phase.BUILD, progress):
                if failed is not None:
                    self._build_failed(failed)
                self._compile(progress)

    def _compare_only(self, kind: str) -> None:
        """Skips the build, and records that the candidate is no CUDA extension."""
        self._comparison = kind
        self._notes.append(f"a comparison: {kind}, judged under the guard's rule {kind}; no CUDA extension")
        violations, self._own_kernels = guard.check_comparison(self._candidate)
        self._convict(violations)

    def _compile(self, progress: Progress) -> None:
        built = build_extension(self._candidate, self._options, self._build_cache, progress)
        if built.library is None:
            self._build_failed(built.report)
        self._build, self.library = built.report, built.library
        self._convict(guard.check_built(self._candidate, built.objects, built.library, self._options.device))
        self._own_kernels = guard.own_kernels(built.objects)

    def _build_failed(self, report: BuildReport) -> NoReturn:
        self._build = report.model_copy(update={"candidate_digest": self._candidate.digest})
        self._decide(Verdict.BUILD_FAILED, _first_error(report.log), report.log[-4096:])

    def judge(
        self,
        session: Resources,
        *,
        with_profile: bool,
        clock: DeviceUse = contextlib.nullcontext,
    ) -> None:
        """Verifies and times what was built, in a worker of the session. `clock` is entered for the timing."""
        if self.decided:
            return
        session.admit()
        self._signal = session.signal
        if self._signal in SIGNAL_NOTES:
            self._notes.append(SIGNAL_NOTES[self._signal])
        for attempt in range(1, ATTEMPTS + 1):
            self._begin_anew()
            try:
                with contextlib.suppress(_Decided), session.process(self._candidate, self.library) as process:
                    self._judge_in(session, process, with_profile, clock)
            except WorkerFault as error:
                self._blame(error.fault)
            if self.decided or self._verdict is not Verdict.TIMING_VOID or attempt == ATTEMPTS:
                return
            self._notes.append(f"timed again: {self._reason}")

    def _begin_anew(self) -> None:
        """Discards an earlier attempt except its note."""
        self._phase, self._reason = Phase.VERIFY, ""
        self._verify = self._profile = self._kernels = self._failing = None
        self._operators = {}
        for phase in (Phase.VERIFY, Phase.PROFILE):
            self._durations.pop(phase.value, None)

    def _judge_in(
        self,
        session: Resources,
        process: CandidateProcess,
        with_profile: bool,
        clock: DeviceUse,
    ) -> None:
        floor = session.floor()
        verification = Verification(session, process, floor)
        with self._enter(Phase.VERIFY, session.progress):
            verified = self._verify_in(verification)
            if not with_profile:
                self._observe(verification)
                self._decide(Verdict.TIMING_VOID, "verified, not timed", process.worker.tail())
        if session.sharing.gives_back:
            process.rest()
        if verified.frozen:
            # This compiles, so it comes before the device is held for the timing.
            session.progress("profile", "compiling the baseline with constant weights")
            session.sharing.give_up()
            session.baselines.freeze()
        with self._enter(Phase.PROFILE, session.progress):
            with clock():
                try:
                    self._profile_in(session, process, floor, verified)
                    process.rest()
                except WorkerFault:
                    # This frees memory for other tasks.
                    process.worker.kill()
                    raise
            self._observe(verification)
            self._log_tail = process.worker.tail()
            self._look_at_limits(session)
            self._verdict = Verdict.PASSED

    def _verify_in(self, verification: Verification) -> VerifyReport:
        process = verification.candidate
        try:
            self._verify = verification.run()
        except WorkerFault:
            self._failing = verification.failing()
            raise
        finally:
            self._operators = process.operators.counts
        self._convict(process.operators.violations())
        self._note_loose(self._verify)
        if not self._verify.passed:
            self._failing = verification.failing()
            verdict, reason = failing(self._verify)
            self._decide(verdict, reason, process.worker.tail())
        # Timing gets the memory that verification held.
        process.release()
        verification.reference.release()
        return self._verify

    def _note_loose(self, report: VerifyReport) -> None:
        """Notes a budget that is far above what the type can do, unless the precision policy makes it so."""
        loose = [trial.eager_error or 0.0 for trial in report.trials if trial.loose]
        if loose and self._options.precision in (Precision.FP32, Precision.TF32):
            self._notes.append(
                f"eager itself is {max(loose):.2g} from the {report.oracle} oracle (relative) in {len(loose)} of "
                f"{len(report.trials)} trials, so that more is allowed there than the type needs"
            )

    def _observe(self, verification: Verification) -> None:
        """Records what runs on the GPU in one more verified call. It follows the timing, which recording would slow."""
        if self._options.device is not Device.CUDA:
            return
        process = verification.candidate
        process.renew()
        trial = verification.observe()
        assert verification.result is not None
        rows, error = verification.result.kernels, verification.result.kernels_error
        # GPU activity can be recorded here where it was for a baseline.
        baselines = self._profile.baselines.values() if self._profile is not None else ()
        recordable = any(timing.busy_us is not None for timing in baselines)
        found = judge_kernels(
            rows, self._own_kernels, recordable=recordable, seeded=verification.reference.spec.seeded, error=error
        )
        self._kernels, self._notes = found.report, [*self._notes, *found.notes]
        self._convict([*process.operators.violations(), *found.violations])
        if not trial.passed:
            self._decide(Verdict.INCORRECT, f"trial observed: {trial.reason}", process.worker.tail())
        process.release()
        verification.reference.release()

    def _profile_in(self, session: Resources, process: CandidateProcess, floor: float, verified: VerifyReport) -> None:
        found = profile_candidate(session, process, verified, floor=floor, options=self._options)
        if found.fault is not None:
            raise WorkerFault(found.fault)
        self._suspect(found.violations)
        self._convict(found.violations)
        self._profile = found.report

    def _look_at_limits(self, session: Resources) -> None:
        """Quarantines a time that the hardware can't reach, and notes one that needs fewer operations."""
        limits = roofline.hardware(self._options.device, self._options.precision)
        if limits is None or self._profile is None:
            return
        work = roofline.work_of(session.known_graph(), session.reference.spec.outputs)
        found = roofline.examine(self._profile.candidate.latency_us, work, limits)
        if found.flag is not None:
            notes = (*self._profile.notes, found.flag)
            self._profile = self._profile.model_copy(update={"notes": notes, "fewer_operations": True})
        if found.quarantine is not None:
            self._decide(Verdict.QUARANTINED, found.quarantine, self._log_tail)

    @contextlib.contextmanager
    def _enter(self, phase: Phase, progress: Progress) -> Iterator[None]:
        self._phase = phase
        progress(phase.value, "")
        begin = time.monotonic()
        try:
            yield
        finally:
            self._durations[phase.value] = time.monotonic() - begin

    def _convict(self, violations: Sequence[Violation]) -> None:
        if violations:
            self._violations += violations
            first = violations[0]
            self._decide(Verdict.VIOLATION, f"{first.rule}: {first.detail}")

    def _suspect(self, violations: Sequence[Violation]) -> None:
        """Voids the timing when a clock alone speaks against the candidate for the first time, by WorkerFault. The
        second time convicts."""
        by_clock = all(one.rule in _BY_CLOCK for one in violations)
        if violations and by_clock and not self._suspected:
            self._suspected = True
            raise WorkerFault(Fault(Verdict.TIMING_VOID, violations[0].detail, FaultKind.CLOCKS))

    def _blame(self, fault: Fault) -> None:
        self._violations += fault.violations
        self._verdict, self._reason, self._log_tail = fault.verdict, fault.reason, fault.log_tail

    def _decide(self, verdict: Verdict, reason: str, log_tail: str = "") -> NoReturn:
        self._verdict, self._reason, self._log_tail = verdict, reason, log_tail
        self.decided = True
        raise _Decided

    def evaluation(self) -> Evaluation:
        """Returns the record of what was done."""
        return Evaluation(
            task_key=self.task.key,
            candidate_digest=self._candidate.digest,
            device=self._options.device,
            precision=self._options.precision,
            verdict=self._verdict,
            phase=self._phase,
            reason=self._reason[:4096],
            log_tail=self._log_tail,
            build=self._build,
            verify=self._verify,
            profile=self._profile,
            violations=tuple(self._violations),
            operators=self._operators,
            kernels=self._kernels,
            notes=tuple(self._notes),
            failing=self._failing,
            comparison=self._comparison,
            signal=self._signal,
            sandbox=resolve_level(self._options.sandbox),
            stack=read_stack(),
            durations_s=self._durations,
        )


def _first_error(log: str) -> str:
    """Returns the first line of a compiler's log that names an error, one with a place before one without."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    named = [line for line in lines if "error" in line.lower()]  # foreign text: the compiler's
    placed = [line for line in named if _PLACE.search(line)]
    return next(iter([*placed, *named, *lines[-1:]]), "no output")[:500]
