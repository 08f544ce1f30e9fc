"""A judge for one task: resident reference and baseline workers, a fresh worker for every candidate, one verdict each."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Phase, Verdict
from cuda_agent.core.errors import StoreError, TaskError
from cuda_agent.core.files import cache_dir
from cuda_agent.core.graph import Graph
from cuda_agent.core.records import (
    BuildReport,
    Candidate,
    Evaluation,
    ProfileReport,
    ScreenReport,
    Task,
    VerifyReport,
    Violation,
)
from cuda_agent.core.stack import read_stack
from cuda_agent.judge.admission import Admission, check_answers, random_operators
from cuda_agent.judge.compare import error_floor
from cuda_agent.judge.process import Fault, Pool, WorkerFault, WorkerSettings
from cuda_agent.judge.reference import Reference
from cuda_agent.judge.verify import CandidateProcess, Secrets, Verification, failing
from cuda_agent.judge.worker.errorfloor import largest_reduction
from cuda_agent.workspace.sandbox import resolve_level

Progress = Callable[[str, str], None]


def _silent(phase: str, text: str) -> None:
    del phase, text


class JudgeSession:
    """A context manager. Everything that it started, on the host and on the GPU, ends with it.

    A bad candidate is data: `build`, `verify`, `screen` and `evaluate` return it as such. What the user must mend is raised: TaskError,
    DeviceError, SandboxError, StoreError, WorkerError.
    """

    def __init__(
        self, task: Task, options: JudgeOptions, *, progress: Progress | None = None, hidden: Sequence[Path] = ()
    ) -> None:
        """`hidden`: folders that no worker may read, besides the working directory, the caches and /tmp."""
        self.task = task
        self.options = options
        self.progress: Progress = progress or _silent
        self.secrets = Secrets(options.seed)
        self._hidden = tuple(hidden)
        self._stack = contextlib.ExitStack()
        self._reference: Reference | None = None
        self._graph: Graph | None = None
        self._graph_error: TaskError | None = None
        self._admission: Admission | None = None

    # ------------------------------------------------------------ life

    def __enter__(self) -> JudgeSession:
        try:
            self._open()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends every worker and frees every buffer; harmless when done before."""
        self._stack.close()

    def _open(self) -> None:
        self.level = resolve_level(self.options.sandbox)
        self.directory = _temporary_directory()
        self._stack.callback(shutil.rmtree, self.directory, ignore_errors=True)
        hidden = tuple(path for path in (Path.cwd(), cache_dir(), *self._hidden) if len(path.resolve().parts) > 1)
        settings = WorkerSettings(self.options.device, self.level, self.options.host_memory_mib, hidden)
        self.pool = Pool(settings, self.directory)
        self._stack.callback(self._release)
        self._reference_worker = self.pool.start("reference")
        self.pool.prewarm()

    def _release(self) -> None:
        # Workers first: memory is freed when nobody maps it any more.
        self.pool.close()
        if self._reference is not None:
            self._reference.release()

    # ------------------------------------------------------------ the task

    @property
    def reference(self) -> Reference:
        """The task in its worker, loaded when first needed, and again after it died. Raises TaskError."""
        if self._reference is not None and self._reference_worker.alive:
            return self._reference
        if self._reference is not None:
            self._reference.release()
            self._reference = None
            self._reference_worker = self.pool.start("reference")
        self.progress("task", "loading the reference")
        reference = Reference(
            self._reference_worker, self.task, self.options.precision, timeout_s=self.options.call_timeout_s
        )
        reference.load(self.secrets.seed())
        self._reference = reference
        return reference

    def graph(self) -> Graph:
        """`forward` as a graph, captured in the reference worker. Raises TaskError where it can't be captured."""
        if self._graph is None and self._graph_error is None:
            reference = self.reference
            try:
                self._graph = reference.graph(self.secrets.seed())
            except TaskError as error:
                self._graph_error = error
        if self._graph_error is not None:
            raise self._graph_error
        assert self._graph is not None
        return self._graph

    def admit(self) -> Admission:
        """Whether the task can be judged. Raises TaskError: it fails, is stochastic, or null answers pass."""
        if self._admission is None:
            spec = self.reference.spec
            self.progress("task", "checking that wrong answers would be noticed")
            graph = self._known_graph()
            random = random_operators(graph) if graph else ()
            if random:
                raise TaskError(
                    f"{self.task.name} is stochastic in eval mode: {', '.join(random)}",
                    "Remove random operators from forward",
                )
            check_answers(self.task, self.reference, self.secrets, self.floor())
            self._admission = Admission(
                inputs=spec.inputs,
                outputs=spec.outputs,
                weights=len(spec.state),
                operators=tuple(sorted({node.op for node in graph.nodes})) if graph else (),
                sandbox=self.level,
            )
        return self._admission

    def floor(self) -> float:
        """The error budget's floor for this task (see `compare.error_floor`)."""
        spec = self.reference.spec
        graph = self._known_graph()
        widest = max((size for m in (*spec.inputs, *spec.state.values()) for size in m.shape), default=1)
        length = largest_reduction(graph) if graph else widest
        return error_floor(self.options.precision, self.options.device, length, spec.products)

    def _known_graph(self) -> Graph | None:
        try:
            return self.graph()
        except TaskError:
            return None

    # ------------------------------------------------------------ candidates

    def build(self, candidate: Candidate) -> BuildReport:
        """Compiles a snapshot; a failure is in the report."""
        return self._built(candidate).report

    def verify(self, candidate: Candidate) -> Evaluation:
        """Guard, build and verification without timing. Where all of that holds, the phase is VERIFY, `verify.passed` is true and
        the verdict is TIMING_VOID: only `evaluate` can say PASSED."""
        return self._judge(candidate, with_profile=False)

    def evaluate(self, candidate: Candidate) -> Evaluation:
        """Everything, in a fresh worker: the verdict that pays."""
        return self._judge(candidate, with_profile=True)

    def screen(self, candidate: Candidate, configs: list[dict[str, int]]) -> ScreenReport:
        """Times of several settings in one build, for a search's own information."""
        from cuda_agent.judge import profile

        def failed(reason: str) -> ScreenReport:
            failures = dict.fromkeys(range(len(configs)), reason)
            return ScreenReport(configs=tuple(configs), latency_us=(None,) * len(configs), failures=failures)

        built = self._built(candidate)
        if built.library is None:
            return failed(f"the build failed: {built.report.log[-500:]}")
        try:
            with self._process(candidate, built.library) as process:
                return profile.screen(self, process, configs)
        except WorkerFault as error:
            return failed(error.fault.reason)

    def _built(self, candidate: Candidate) -> Any:
        from cuda_agent.judge.build import build

        return build(candidate, options=self.options, level=self.level, progress=self.progress)

    @contextlib.contextmanager
    def _process(self, candidate: Candidate, library: Path | None) -> Iterator[CandidateProcess]:
        """The candidate, loaded in a worker of its own that ends with the block; the next worker is then warmed."""
        reference = self.reference
        process = CandidateProcess(self.pool.candidate(), reference, timeout_s=self.options.call_timeout_s)
        try:
            process.load(candidate, library)
            yield process
        finally:
            process.close()
            self.pool.prewarm()

    def _judge(self, candidate: Candidate, *, with_profile: bool) -> Evaluation:
        case = Case(self, candidate)
        with contextlib.suppress(Decided):
            case.guard_sources()
            case.build()
            case.verify_and_profile(with_profile=with_profile)
        return case.evaluation()


class Decided(Exception):
    """The case has its verdict; nothing further is done."""


class Case:
    """One candidate on its way through the phases; collects what its `Evaluation` holds."""

    def __init__(self, session: JudgeSession, candidate: Candidate) -> None:
        self._session = session
        self._candidate = candidate
        self._phase = Phase.SNAPSHOT
        self._verdict = Verdict.TIMING_VOID
        self._reason = self._log_tail = ""
        self._build: BuildReport | None = None
        self._library: Path | None = None
        self._verify: VerifyReport | None = None
        self._profile: ProfileReport | None = None
        self._violations: list[Violation] = []
        self._durations: dict[str, float] = {}

    def guard_sources(self) -> None:
        from cuda_agent.judge import guard

        with self._enter(Phase.GUARD):
            self._convict(guard.check_sources(self._candidate, self._session.options.device))

    def build(self) -> None:
        from cuda_agent.judge import guard

        with self._enter(Phase.BUILD):
            built = self._session._built(self._candidate)
            self._build, self._library = built.report, built.library
            if built.library is None:
                self._decide(Verdict.BUILD_FAILED, _first_error(built.report.log), built.report.log[-4096:])
            self._convict(guard.check_symbols(built.library))

    def verify_and_profile(self, *, with_profile: bool) -> None:
        from cuda_agent.judge import profile

        session = self._session
        floor = session.floor()
        try:
            with self._enter(Phase.VERIFY), contextlib.ExitStack() as stack:
                process = stack.enter_context(session._process(self._candidate, self._library))
                self._verify_in(process, floor)
                if not with_profile:
                    self._decide(Verdict.TIMING_VOID, "verified, not timed", phase=Phase.VERIFY)
                self._log_tail = process.worker.tail()
                stack.pop_all()
            with self._enter(Phase.PROFILE):
                self._profile = profile.run(session, process, self._candidate)
            self._verdict, self._reason = Verdict.PASSED, ""
        except WorkerFault as error:
            self._blame(error.fault)

    def _verify_in(self, process: CandidateProcess, floor: float) -> None:
        session = self._session
        verification = Verification(
            task=session.task,
            reference=session.reference,
            candidate=process,
            secrets=session.secrets,
            floor=floor,
            trials=session.options.trials,
            progress=session.progress,
        )
        self._verify = verification.run()
        if not self._verify.passed:
            verdict, reason = failing(self._verify)
            self._decide(verdict, reason, process.worker.tail())

    @contextlib.contextmanager
    def _enter(self, phase: Phase) -> Iterator[None]:
        self._phase = phase
        self._session.progress(phase.value, "")
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

    def _blame(self, fault: Fault) -> None:
        self._violations += fault.violations
        self._verdict, self._reason, self._log_tail = fault.verdict, fault.reason, fault.log_tail

    def _decide(self, verdict: Verdict, reason: str, log_tail: str = "", phase: Phase | None = None) -> None:
        self._verdict, self._reason, self._log_tail = verdict, reason, log_tail
        self._phase = phase or self._phase
        raise Decided

    def evaluation(self) -> Evaluation:
        session = self._session
        return Evaluation(
            task_key=session.task.key,
            candidate_digest=self._candidate.digest,
            device=session.options.device,
            precision=session.options.precision,
            verdict=self._verdict,
            phase=self._phase,
            reason=self._reason[:4096],
            log_tail=self._log_tail,
            build=self._build,
            verify=self._verify,
            profile=self._profile,
            violations=tuple(self._violations),
            sandbox=session.level,
            stack=read_stack(),
            durations_s=self._durations,
        )


def _first_error(log: str) -> str:
    """The first line of a compiler's log that names an error."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "no output")[:500]


def _temporary_directory() -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="cuda-agent-judge-"))
    except OSError as error:
        raise StoreError(
            f"Can't create a temporary folder: {error.strerror}", "Free some space, or set TMPDIR"
        ) from None
