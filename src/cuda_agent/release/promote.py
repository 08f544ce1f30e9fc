"""The promotion gate: it runs the judge on a candidate for each requirement, in order."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from cuda_agent.agent.context import Progress
from cuda_agent.agent.device import resolve_device
from cuda_agent.core.baselines import forms
from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device, SandboxLevel, Verdict
from cuda_agent.core.errors import CudaAgentError, StoreError, TaskError, UsageError
from cuda_agent.core.extraction import WholeModel
from cuda_agent.core.files import cache_dir
from cuda_agent.core.graph import TensorMeta
from cuda_agent.core.record import now
from cuda_agent.core.records import BuildReport, Candidate, Evaluation, Task
from cuda_agent.core.stack import read_stack
from cuda_agent.judge import JudgeSession, build_extension, find_sanitizer, sanitizer_findings
from cuda_agent.release import checks
from cuda_agent.release.checks import failed, not_applicable, passed, skipped
from cuda_agent.release.gate import GateOptions
from cuda_agent.release.lock import StackLock, read_lock
from cuda_agent.release.records import GateResult, Promotion
from cuda_agent.release.regressions import KnownFailure, read_failures, remember
from cuda_agent.release.shapes import batch_size, resized_task, sizes_to_try
from cuda_agent.release.speed import ColdProcess, speed
from cuda_agent.release.subject import Subject
from cuda_agent.workspace.sandbox import resolve_level
from cuda_agent.workspace.temporary import temporary_folder

#: trials after the first process, and at other shapes.
FEW_TRIALS = 3
#: gates whose results are valid on this stack only.
OF_THE_STACK = ("speed", "roofline", "whole_model")


@dataclass(frozen=True)
class Examined:
    """The gates' results and their evidence: evaluations by name, and the measurement of a whole model or None."""

    promotion: Promotion
    evaluations: Mapping[str, Evaluation]
    whole_model: WholeModel | None


def promote(
    subject: Subject,
    gate: GateOptions,
    rivals: Mapping[str, Candidate],
    registry: Path,
    progress: Progress,
) -> Examined:
    """Runs all gates for one candidate. `rivals` are other kernels that it must be faster than. Failures are added to
    the registry's regressions at once.

    A bad candidate raises no error. Raises TaskError, DeviceError, SandboxError, StoreError, WorkerError.
    """
    started, begin = now(), time.monotonic()
    resolve_device(subject.options.device.value)
    try:
        registry.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"Can't make the registry {registry}: {error.strerror}", "Choose another --registry") from None
    if not os.access(registry, os.W_OK):
        raise StoreError(f"The registry {registry} can't be written", "Choose another --registry")
    own = [one for one in subject.evaluations if one.task_key == subject.task.key]
    remember(registry, subject.task.key, own)
    with temporary_folder("judge") as folder:
        examination = Examination(subject, gate, rivals, registry, folder, progress)
        examination.run()
    promotion = Promotion(
        task=subject.task.name,
        task_key=subject.task.key,
        candidate_digest=subject.candidate.digest,
        device=subject.options.device,
        precision=gate.precision,
        gates=tuple(examination.results),
        version=metadata.version("cuda-agent"),
        started=started,
        duration_s=time.monotonic() - begin,
    )
    return Examined(promotion, examination.evaluations, examination.whole_model)


class Examination:
    """The gates of one candidate. `results` and `evaluations` grow while it runs."""

    def __init__(
        self,
        subject: Subject,
        gate: GateOptions,
        rivals: Mapping[str, Candidate],
        registry: Path,
        folder: Path,
        progress: Progress,
    ) -> None:
        self.results: list[GateResult] = []
        self.evaluations: dict[str, Evaluation] = {}
        self.whole_model: WholeModel | None = None
        self._subject, self._gate, self._rivals = subject, gate, rivals
        self._task, self._candidate, self._device = subject.task, subject.candidate, subject.options.device
        self._registry, self._folder, self._progress = registry, folder, progress
        self._failures: tuple[KnownFailure, ...] = read_failures(registry, subject.task.key) if gate.regressions else ()
        self._since = time.monotonic()

    def run(self) -> None:
        """Runs every gate whose requirements are met; the others are skipped."""
        on_the_stack = self._add(self._lock())
        self._add(self._sandbox())
        if not self._add(self._rebuild()):
            return self._skip_rest()
        mine, others, inputs = self._first(timed=on_the_stack)
        self._add(checks.guard([mine]))
        known = [failure.regression for failure in self._failures]
        for result in checks.verification(mine, known):
            self._add(self._tolerances() or result if result.name == "verification" else result)
        if mine.violations:
            return self._skip_rest()
        # This runs for wrong outputs too: a race is often their cause.
        self._add(self._sanitize())
        if mine.verify is None or not mine.verify.passed:
            return self._skip_rest()
        self._add(self._shapes(inputs))
        if not on_the_stack:
            return self._skip_rest()
        processes = self._processes(ColdProcess(mine, others))
        evaluations = [process.mine for process in processes]
        # A rule may be broken in a later process only. Each gate has one result, which is replaced.
        for later in (checks.guard(evaluations), self._swapped(evaluations)):
            if later is not None and later.status == "failed":
                self.results = [later if one.name == later.name else one for one in self.results]
        self._add(speed(self._gate.speed, processes))
        self._add(checks.roofline(evaluations, self._device))
        self._add(self._whole_model())
        return None

    def _add(self, result: GateResult) -> bool:
        """Adds a result with the time since the last one. Returns whether the gate didn't fail."""
        now = time.monotonic()
        self.results.append(result.model_copy(update={"duration_s": now - self._since}))
        self._since = now
        self._progress("Gate", f"{result.name}: {result.status.replace('_', ' ')}: {result.reason}")
        return result.status != "failed"

    def _skip_rest(self) -> None:
        """Marks the remaining gates as skipped, because of the gate that failed last."""
        decided = {result.name for result in self.results}
        because = [result.name for result in self.results if result.status == "failed"][-1]
        for name in NAMES:
            if name not in decided:
                self._add(skipped(name, f"{because} failed"))

    def _lock(self) -> GateResult:
        if self._gate.lock is None:
            return not_applicable("lock", "the gate needs none")
        try:
            lock = StackLock.load(self._gate.lock)
        except CudaAgentError as error:
            return failed("lock", str(error))
        differences = lock.differences(read_lock())
        if differences:
            named = {one.name: {"locked": one.locked, "here": one.here} for one in differences}
            return failed("lock", "; ".join(map(str, differences)), differences=named)
        return passed("lock", "the stack is the locked one")

    def _sandbox(self) -> GateResult:
        level = resolve_level("auto")
        if level is SandboxLevel.FULL or self._gate.sandbox == "any":
            return passed("sandbox", level.value)
        return failed("sandbox", "only `reduced` is possible here: install bubblewrap where namespaces are allowed")

    def _rebuild(self) -> GateResult:
        """Compiles the candidate without objects or libraries of earlier builds. All later gates run this library."""
        first = self._built("build")
        if not first.succeeded:
            return failed("rebuild", first.log.strip()[:500] or "it doesn't compile", log=first.log)
        known = {e.build.library_digest for e in self._subject.evaluations if e.build is not None}
        again = first.library_digest
        if self._gate.rebuild.reproducible == "none":
            return passed("rebuild", "compiled anew", library=first.library_digest)
        if first.library_digest not in known:
            again = self._built("again").library_digest
        digests = {"library": first.library_digest, "again": again, "recorded": sorted(filter(None, known))}
        if again == first.library_digest:
            return passed("rebuild", "reproducible: two clean builds gave the same bytes", **digests)
        strict = self._gate.rebuild.reproducible == "required"
        decide = failed if strict else passed
        return decide("rebuild", "not reproducible: two clean builds gave different bytes", **digests)

    def _built(self, name: str) -> BuildReport:
        """Compiles the candidate in the build cache `name`."""
        return build_extension(self._candidate, self._options(), self._cache(name), self._progress).report

    def _swapped(self, evaluations: Sequence[Evaluation]) -> GateResult | None:
        """Returns a failure where a process ran another library than the rebuilt one, else None."""
        rebuilt = next(one.data.get("library") for one in self.results if one.name == "rebuild")
        for number, found in enumerate(evaluations, start=1):
            ran = None if found.build is None else found.build.library_digest
            if ran is not None and ran != rebuilt:
                return failed("rebuild", f"process {number} ran the library {ran[:12]}, {str(rebuilt)[:12]} was built")
        return None

    def _cache(self, name: str) -> Path:
        """Returns a build cache that holds only the precompiled header of torch, which doesn't depend on a
        candidate."""
        headers, cache = cache_dir() / "build" / "headers", self._folder / name
        try:
            headers.mkdir(parents=True, exist_ok=True)
            cache.mkdir(exist_ok=True)
            if not (cache / "headers").exists():
                (cache / "headers").symlink_to(headers)
        except OSError as error:
            raise StoreError(f"Can't make {cache}: {error.strerror}", "Free some space, or set TMPDIR") from None
        return cache

    def _options(self, **changes: object) -> JudgeOptions:
        """Returns the run's options with those that the gate decides."""
        own = {
            "precision": self._gate.precision,
            "trials": FEW_TRIALS,
            "variants": "usual",
            "regressions": (),
            "autotune": any(form.on_request for name, form in forms().items() if name in self._gate.speed.baselines),
            "timing_budget_s": self._gate.speed.timing_budget_s,
            "timing_stop": "settled",
            "compile_baseline_timeout_s": self._gate.speed.compile_timeout_s,
            "sandbox": "auto",
            "seed": None,
        }
        return self._subject.options.model_copy(update={**own, **changes})

    @contextmanager
    def _session(self, task: Task, options: JudgeOptions, *, timed: bool) -> Iterator[JudgeSession]:
        """Opens a cold judge with new processes, which uses the clean build."""
        hidden = (self._subject.directory, self._registry.absolute())
        with JudgeSession(
            task, options, progress=self._progress, hidden=hidden, build_cache=self._cache("build")
        ) as session:
            session.baselines.eager_only = not timed or set(self._gate.speed.baselines) <= {"eager"}
            session.admit()
            yield session

    def _evaluate(self, session: JudgeSession, candidate: Candidate, name: str) -> Evaluation:
        found = self.evaluations[name] = session.evaluate(candidate)
        return found

    def _first(self, *, timed: bool) -> tuple[Evaluation, dict[str, Evaluation], tuple[TensorMeta, ...]]:
        """Runs process 1, with the most trials and variants. Returns the evaluations of the candidate and of the other
        kernels, and the inputs."""
        asked = self._gate.verification
        regressions = tuple(failure.regression for failure in self._failures if failure.batch is None)
        wide = "wide" if asked.scales else "usual"
        options = self._options(trials=asked.trials, variants=wide, regressions=regressions)
        with self._session(self._task, options, timed=timed) as session:
            if timed:
                mine = self._evaluate(session, self._candidate, "process-1")
            else:
                mine = self.evaluations["process-1"] = session.verify(self._candidate)
            self._remember(mine)
            others = self._others(session, 1) if timed and mine.profile is not None else {}
            return mine, others, session.reference.spec.inputs

    def _others(self, session: JudgeSession, number: int) -> dict[str, Evaluation]:
        return {n: self._evaluate(session, other, f"process-{number}-{n}") for n, other in self._rivals.items()}

    def _remember(self, evaluation: Evaluation, batch: int | None = None) -> None:
        for new in remember(self._registry, self._task.key, [evaluation], batch):
            self._progress("Gate", f"later candidates will be tried on this too: {new.reason[:120]}")

    def _tolerances(self) -> GateResult | None:
        """Returns a failure where the task has larger tolerances than the gate allows, else None."""
        asked, task = self._gate.verification, self._task
        if task.atol <= asked.most_atol and task.rtol <= asked.most_rtol:
            return None
        allowed = f"the gate allows {asked.most_atol:g} and {asked.most_rtol:g}"
        return failed("verification", f"the task has atol {task.atol:g} and rtol {task.rtol:g}; {allowed}")

    def _shapes(self, inputs: tuple[TensorMeta, ...]) -> GateResult:
        asked, usual = self._gate.verification, batch_size(inputs)
        if asked.shapes == "none":
            return not_applicable("shapes", "the gate needs none")
        if usual is None:
            return not_applicable("shapes", "no input has a batch dimension")
        earlier = [failure.batch for failure in self._failures if failure.batch is not None]
        outcomes: dict[int, Evaluation | str] = {}
        for size in sizes_to_try(usual, asked.batch_sizes, earlier):
            self._progress("Gate", f"shapes: a batch of {size}")
            outcomes[size] = self._at(usual, size)
        return checks.shapes(asked.shapes == "required", outcomes)

    def _at(self, usual: int, size: int) -> Evaluation | str:
        regressions = tuple(failure.regression for failure in self._failures if failure.batch == size)
        options = self._options(regressions=regressions, autotune=False)
        try:
            with self._session(resized_task(self._task, usual, size), options, timed=False) as session:
                found = self.evaluations[f"batch-{size}"] = session.verify(self._candidate)
        except TaskError as error:
            return error.cause
        if found.verdict is not Verdict.RAISED or self._gate.verification.shapes == "required":
            self._remember(found, size)
        return found

    def _sanitize(self) -> GateResult:
        asked = self._gate.verification.sanitize
        if asked == "none":
            return not_applicable("sanitize", "the gate needs none")
        if self._device is not Device.CUDA:
            decide = failed if asked == "required" else not_applicable
            return decide("sanitize", "compute-sanitizer checks GPU code, and the device is cpu")
        try:
            find_sanitizer()
            with self._session(self._task, self._options(autotune=False), timed=False) as session:
                return checks.sanitize(sanitizer_findings(session, self._candidate))
        except CudaAgentError as error:
            return failed("sanitize", str(error))

    def _processes(self, first: ColdProcess) -> list[ColdProcess]:
        """Returns the first process and the further ones. It stops after the first process that fails the gate."""
        processes = [first]
        for number in range(2, self._gate.speed.processes + 1):
            if speed(self._gate.speed, processes).status == "failed":
                break
            self._progress("Gate", f"speed: process {number} of {self._gate.speed.processes}")
            with self._session(self._task, self._options(), timed=True) as session:
                # The order alternates, so that no kernel always has the warmer device.
                others = self._others(session, number) if number % 2 == 0 else {}
                mine = self._evaluate(session, self._candidate, f"process-{number}")
                self._remember(mine)
                others = others or self._others(session, number)
            processes.append(ColdProcess(mine, others))
        return processes

    def _whole_model(self) -> GateResult:
        asked = self._gate.whole_model
        path = asked.record or self._subject.directory / WholeModel.file_name
        folder = path if path.is_dir() else path.parent
        if not (folder / WholeModel.file_name).is_file():
            if asked.record is not None:
                return failed("whole_model", f"there is no {WholeModel.file_name} in {folder}")
            return checks.whole_model(asked, None, self._candidate.digest, read_stack())
        try:
            self.whole_model = WholeModel.read(folder)
        except (StoreError, UsageError) as error:
            return failed("whole_model", str(error))
        return checks.whole_model(asked, self.whole_model, self._candidate.digest, read_stack())


NAMES = (
    "lock", "sandbox", "rebuild", "guard", "verification", "precision", "scales", "regressions", "sanitize", "shapes",
    *OF_THE_STACK,
)  # fmt: skip
