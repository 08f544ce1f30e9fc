"""The judge of one task, which gives one verdict for each candidate."""

from contextlib import nullcontext

from cuda_agent.core.config import JudgeOptions, TimingStop
from cuda_agent.core.enums import Verdict
from cuda_agent.core.inspection import InspectReport
from cuda_agent.core.records import BuildReport, Candidate, Evaluation, ScreenReport, Task
from cuda_agent.judge.build.extension import Progress, silent
from cuda_agent.judge.case import Case
from cuda_agent.judge.inspection.inspect import inspect
from cuda_agent.judge.inspection.sanitizer import require_sanitizer, sanitized
from cuda_agent.judge.profile.screening import Screening
from cuda_agent.judge.resources import Resources, one_at_a_time
from cuda_agent.judge.sharing import DeviceUse
from cuda_agent.workers.process import WorkerFault


class JudgeSession(Resources):
    """Judges candidates with `Resources`. Threads may share it, such as those of an agent's tools and of the commands
    in its shell.

    A bad candidate is data: `build`, `verify`, `screen` and `evaluate` return it as such.
    """

    def build(self, candidate: Candidate) -> BuildReport:
        """Compiles a snapshot. The report has its failure."""
        return self.built(candidate).report

    def verify(self, candidate: Candidate) -> Evaluation:
        """Guards, builds and verifies without timing. On success the phase is VERIFY, `verify.passed` is true and the
        verdict is TIMING_VOID, since only `evaluate` can return PASSED."""
        return self._judge(candidate, with_profile=False)

    def evaluate(self, candidate: Candidate, *, stop: TimingStop | None = None) -> Evaluation:
        """Runs all phases in a fresh worker and returns the verdict that pays. `stop` replaces the options'
        timing_stop."""
        return self._judge(candidate, with_profile=True, stop=stop)

    @one_at_a_time
    def screen(
        self, candidate: Candidate, configs: list[dict[str, int]], *, clock: DeviceUse = nullcontext
    ) -> ScreenReport:
        """Tries and times several settings in one build, for information in a search. `clock` is entered for the
        timing."""

        def failed(reason: str, *, out_of_memory: bool = False) -> ScreenReport:
            return ScreenReport(
                configs=tuple(configs),
                latency_us=(None,) * len(configs),
                failures=dict.fromkeys(range(len(configs)), reason),
                out_of_memory=out_of_memory,
            )

        built = self.built(candidate)
        if built.library is None:
            return failed(f"the build failed: {built.report.log[-500:]}")
        try:
            process = self.screening(candidate, built.library)
            screening = Screening(self, process, configs)
            screening.attempt()
            if screening.hopeful and process.usable:
                with clock():
                    screening.time()
                    if process.usable:
                        process.rest()
            return screening.report
        except WorkerFault as error:
            self.end_screenings()
            return failed(error.fault.reason, out_of_memory=error.fault.verdict is Verdict.OUT_OF_MEMORY)

    @one_at_a_time
    def inspect(self, candidate: Candidate) -> InspectReport | BuildReport:
        """Finds what limits a candidate, for information in a search. Returns the build's report where it doesn't
        compile."""
        return inspect(self, candidate)

    @one_at_a_time
    def _judge(self, candidate: Candidate, *, with_profile: bool, stop: TimingStop | None = None) -> Evaluation:
        case = Case(self.task, self.options.stopping(stop), candidate, self._build_cache)
        if self._opened:
            self.workers.rouse()
        case.build(self.progress)
        case.judge(self, with_profile=with_profile)
        return case.evaluation()


def evaluate(
    task: Task,
    candidate: Candidate,
    options: JudgeOptions,
    progress: Progress = silent,
    *,
    sanitize: bool = False,
) -> Evaluation:
    """The verdict on one candidate; starts a judge for it and ends it. `progress` is called with (phase, text).
    `sanitize`: a candidate that verification passed also runs under compute-sanitizer. Raises TaskError, DeviceError,
    SandboxError, StoreError, WorkerError; never for a bad candidate."""
    if sanitize:
        require_sanitizer(options.device)
    with JudgeSession(task, options, progress=progress) as session:
        session.admit()
        evaluation = session.evaluate(candidate)
        return sanitized(session, candidate, evaluation) if sanitize else evaluation
