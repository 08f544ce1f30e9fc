"""Holds what the judge of one task keeps: the reference, the baselines, and a fresh worker for every candidate."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Concatenate, ParamSpec, Self, TypeVar

from cuda_agent.core import bytecode
from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device, Signal
from cuda_agent.core.errors import CudaAgentError, OutOfMemory, TaskError, WorkerError
from cuda_agent.core.files import cache_dir
from cuda_agent.core.graph import DRAWS, Graph
from cuda_agent.core.records import Candidate, Task
from cuda_agent.judge.build.extension import Built, HeaderAhead, Progress, build_extension, silent
from cuda_agent.judge.profile.baselines import Baselines, compile_cache
from cuda_agent.judge.sharing import Sharing
from cuda_agent.judge.verify.admission import SIGNAL_NOTES, check_answers
from cuda_agent.judge.verify.candidate import CandidateProcess
from cuda_agent.judge.verify.compare import error_floor
from cuda_agent.judge.verify.reference import Reference
from cuda_agent.judge.verify.trials import Secrets
from cuda_agent.workers.buffers import gpu_memory
from cuda_agent.workers.inside.graph.errorfloor import largest_reduction
from cuda_agent.workers.process import Worker, WorkerSettings
from cuda_agent.workers.requests.reference import CallEstimate, EstimateCall, ImportCapture, TaskSpec
from cuda_agent.workers.roles import BASELINE, REFERENCE
from cuda_agent.workers.supply import WorkerSupply
from cuda_agent.workspace.sandbox import resolve_level
from cuda_agent.workspace.temporary import temporary_folder

_P = ParamSpec("_P")
_R = TypeVar("_R")
_S = TypeVar("_S", bound="Resources")


def one_at_a_time(
    method: Callable[Concatenate[_S, _P], _R],
) -> Callable[Concatenate[_S, _P], _R]:
    """Makes a method of `Resources` that only one thread executes at a time."""

    @functools.wraps(method)
    def alone(self: _S, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        with self._lock:
            return method(self, *args, **kwargs)

    return alone


class Resources:
    """A context manager. Everything that it started, on the host and on the GPU, ends with it. Without `with`, workers
    are started when they are first needed (compiling needs none), and `close` ends them.

    Threads may share it. One request at a time is answered; the others wait.

    What the user must correct is raised: TaskError, DeviceError, SandboxError, StoreError, WorkerError.
    """

    def __init__(
        self,
        task: Task,
        options: JudgeOptions,
        *,
        progress: Progress | None = None,
        hidden: Sequence[Path] = (),
        build_cache: Path | None = None,
        importable: Sequence[Path] = (),
    ) -> None:
        """`hidden` are folders that no worker may read, besides the working directory, the caches and /tmp.
        `build_cache` replaces the usual folder of objects and libraries. `importable` are folders of a user's own code
        that the task imports."""
        self.task = task
        self.options = options
        self.progress: Progress = progress or silent
        self.secrets = Secrets(options.seed)
        self._hidden = tuple(hidden)
        self._build_cache = build_cache
        self._importable = tuple(importable)
        #: is set before the first request.
        self.sharing = Sharing()
        self._lock = threading.RLock()
        self._opened = False
        self._stack = contextlib.ExitStack()
        self._reference: Reference | None = None
        #: serves screenings, which decide nothing, one after the other, until a verdict is requested.
        self._screener: CandidateProcess | None = None
        self._graph: Graph | TaskError | None = None
        #: is known when the task was found fit to be judged.
        self.signal: Signal | None = None

    def __enter__(self) -> Self:
        try:
            self._open()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends every worker and frees every buffer. Harmless when done before."""
        self._stack.close()

    def _open(self) -> None:
        if self._opened:
            return
        self._opened = True
        self.level = resolve_level(self.options.sandbox)
        self.directory = self._stack.enter_context(temporary_folder("judge"))
        hidden = tuple(path for path in (Path.cwd(), cache_dir(), *self._hidden) if len(path.resolve().parts) > 1)
        memory = self.options.host_memory_mib
        settings = WorkerSettings(self.options.device, self.level, memory, hidden, self._importable)
        self.workers = WorkerSupply(settings, self.directory)
        self._stack.callback(self._release)
        filling = bytecode.fill()
        if filling is not None:
            self._stack.callback(filling.wait)
            self._stack.callback(filling.kill)
        self._stack.callback(HeaderAhead(self.options).close)
        self._reference_worker = self.workers.start(REFERENCE, small_context=True)
        if self.sharing.prewarms:
            self.prewarm()
        start = functools.partial(self.workers.start, BASELINE)
        self.baselines = Baselines(self.task, self.options, start, compile_cache(self.task), sharing=self.sharing)

    def start(self) -> CallEstimate:
        """Waits until the reference worker has imported what it and the task need, and starts the baselines' workers.
        It uses no device. Returns an estimate of a call's memory. Raises WorkerError."""
        self._open()
        self.baselines.begin()
        self._reference_worker.without_device(ImportCapture())
        with contextlib.suppress(WorkerError):
            # A worker that the task ends here is found dead when the reference is loaded.
            return self._reference_worker.without_device(EstimateCall(name=self.task.name, source=self.task.source))
        return CallEstimate()

    def prewarm(self) -> None:
        """Lets the workers of the next candidate and of screenings import torch meanwhile. Does nothing before the
        session is open."""
        if self._opened:
            self.workers.prewarm()
            self.workers.prewarm_screenings()

    def next_screener(self) -> Sequence[Worker]:
        """The worker of the next screening; None before the session is open."""
        if self._screener is not None and self._screener.usable:
            return (self._screener.worker,)
        worker = self.workers.next_screener if self._opened else None
        return () if worker is None else (worker,)

    def next_candidate(self) -> Sequence[Worker]:
        """The worker of the next verdict; None before the session is open."""
        worker = self.workers.spare if self._opened else None
        return () if worker is None else (worker,)

    def _release(self) -> None:
        self.baselines.close()
        self.free()

    def end_workers(self) -> None:
        """Ends its processes. Callers that still use them get an error. Harmless before it is open."""
        if self._opened:
            self.workers.close()

    def free(self) -> None:
        """Ends its processes and frees its buffers, which must be in use no more."""
        # Workers end first, because memory is freed when no process maps it.
        self.end_workers()
        self.end_screenings()
        self.rest()

    def rest(self) -> None:
        """Frees buffers that are made again when needed, for other tasks. Raises TaskError."""
        if self._reference is not None:
            self._reference.release()

    @property
    def spec(self) -> TaskSpec | None:
        """The task's facts from the reference's worker; None before it is loaded."""
        return None if self._reference is None else self._reference.spec

    @property
    def kept_bytes(self) -> int | None:
        """The bytes of device memory that the reference's and the baselines' workers report to hold between requests,
        besides their contexts; None where they haven't reported yet."""
        held = None if self._reference is None else self._reference.held_bytes
        prepared = None if held is None else self.baselines.held_bytes
        return None if held is None or prepared is None else held + prepared

    @property
    def oracle_bytes(self) -> int | None:
        """The bytes of device memory that the float64 answers took in the reference's worker; None before the first."""
        return None if self._reference is None else self._reference.oracle_bytes

    def settle(self) -> None:
        """Returns when no baseline is compiled and no worker that was started ahead still starts its device. Their
        failures are raised to the caller that needs them."""
        if self._opened:
            with contextlib.suppress(CudaAgentError):
                self.baselines.wait()
            self.workers.settle()

    @contextlib.contextmanager
    def telling(self, progress: Progress) -> Iterator[None]:
        """Holds the session for the block, and sends its progress to `progress`."""
        with self._lock:
            before, self.progress = self.progress, progress
            try:
                yield
            finally:
                self.progress = before

    @property
    def reference(self) -> Reference:
        """The task in its worker, loaded when first needed, and again after it died. Raises TaskError."""
        self._open()
        if self._reference is not None and self._reference_worker.alive:
            return self._reference
        if self._reference is not None:
            self._reference.release()
            self._reference = None
        if not self._reference_worker.alive:
            self._reference_worker = self.workers.start(REFERENCE, small_context=True)
        # Compiling the baselines takes longest, and a refused task ends the session and them.
        self.baselines.begin()
        self.progress("task", "loading the reference")
        reference = Reference(
            self._reference_worker, self.task, self.options.precision, timeout_s=self.options.call_timeout_s
        )
        reference.load(self.secrets.seed())
        reference.scaled = self.signal is Signal.SCALED
        self._reference = reference
        return reference

    @one_at_a_time
    def graph(self) -> Graph:
        """Returns `forward` as a graph, captured in the reference worker. Raises TaskError where it can't be
        captured."""
        if self._graph is None:
            reference = self.reference
            try:
                self._graph = reference.graph(self.secrets.seed())
            except OutOfMemory:
                raise
            except TaskError as error:
                self._graph = error
        if isinstance(self._graph, TaskError):
            raise self._graph
        return self._graph

    @one_at_a_time
    def admit(self) -> TaskSpec:
        """Checks whether the task can be judged, and returns its facts. Raises TaskError where it fails or is
        stochastic."""
        spec = self.reference.spec
        if self.signal is None:
            if self._fills_device(spec):
                with self.sharing.away():
                    self.settle()
            self.progress("task", "checking that wrong answers would be noticed")
            random = set(spec.random) - DRAWS
            if random:
                raise TaskError(
                    f"{self.task.name} is stochastic in eval mode: {', '.join(sorted(random))}",
                    "Remove random operators from forward, or draw with torch.rand, torch.randn or torch.randint",
                )
            self.signal = check_answers(
                self.task, self.reference, self.secrets, self.floor(), changed=spec.changed, seeded=spec.seeded
            )
            self.reference.scaled = self.signal is Signal.SCALED
            if self.signal in SIGNAL_NOTES:
                self.progress("task", SIGNAL_NOTES[self.signal])
        return spec

    def _fills_device(self, spec: TaskSpec) -> bool:
        """Whether a call holds a tenth of the device, so that nothing else of the task runs beside its answers."""
        return self.options.device is Device.CUDA and 10 * spec.peak_bytes > gpu_memory()[1]

    def floor(self) -> float:
        """The floor of the task's error budget (see `compare.error_floor`)."""
        spec = self.reference.spec
        graph = self.known_graph()
        widest = max((size for m in (*spec.inputs, *spec.state.values()) for size in m.shape), default=1)
        length = largest_reduction(graph) if graph else widest
        return error_floor(self.options.precision, self.options.device, length, spec.products)

    def known_graph(self) -> Graph | None:
        """Returns `graph`, or None where it can't be captured. Raises OutOfMemory."""
        try:
            return self.graph()
        except OutOfMemory:
            raise
        except TaskError:
            return None

    @one_at_a_time
    def built(self, candidate: Candidate) -> Built:
        """Returns the build's report with the library."""
        return build_extension(candidate, self.options, self._build_cache, self.progress)

    def screening(self, candidate: Candidate, library: Path | None) -> CandidateProcess:
        """Yields the candidate, loaded in the worker of screenings. Raises WorkerFault."""
        reference = self.reference
        if self._screener is None or not self._screener.usable:
            self.end_screenings()
            self._screener = CandidateProcess(self.workers.screener(), reference, timeout_s=self.options.call_timeout_s)
            self.workers.prewarm()
        if self._screener.loaded != candidate.digest:
            self._screener.load(candidate, library)
        return self._screener

    def end_screenings(self) -> None:
        screener, self._screener = self._screener, None
        if screener is not None:
            screener.close()

    @contextlib.contextmanager
    def process(self, candidate: Candidate, library: Path | None) -> Iterator[CandidateProcess]:
        """Yields the candidate, loaded in its own worker that ends with the block. The next worker is warmed then, or
        already beside it."""
        self.end_screenings()
        reference = self.reference
        process = CandidateProcess(self.workers.candidate(), reference, timeout_s=self.options.call_timeout_s)
        try:
            process.load(candidate, library)
            yield process
        finally:
            process.close()
            if self.sharing.prewarms:
                self.workers.prewarm()
