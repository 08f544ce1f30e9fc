"""The judge's view of the baselines' two workers: compiled once per session, in the background, and kept. Their times
never are.

Eager runs in a process like a candidate's, which has loaded torch and no compiler: the thousand modules of a compiler
make every call of a few microseconds of the same program some 5 % slower. The compiled forms share another one.

A form that fails to compile, or takes its worker down with it, is left out with its reason; the workers are then
replaced and the others are prepared again. Eager is the task itself: when it fails, the task can't be judged.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Protocol

from cuda_agent.core.baselines import EAGER, Baseline
from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device, Verdict
from cuda_agent.core.errors import CudaAgentError, OutOfMemory, StoreError, TaskError, WorkerError
from cuda_agent.core.files import cache_dir
from cuda_agent.core.records import CompileReport, Task
from cuda_agent.judge.profile.roofline import datasheet
from cuda_agent.judge.sharing import MAX_COMPILE_THREADS, Sharing
from cuda_agent.workers.process import Worker, WorkerFault
from cuda_agent.workers.requests import FaultKind
from cuda_agent.workers.requests.baseline import (
    ImportCompiler,
    PlanBaselines,
    PrepareBaseline,
    PreparedBaseline,
    RetireBaseline,
    SettleBaselines,
)

NULL = "null"
_LOAD_TIMEOUT_S = 600.0


def compile_cache(task: Task) -> Path:
    """The folder in which a task's compiled forms survive the session; only its baseline worker writes there."""
    path = cache_dir() / "inductor" / task.key[:32]
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"Can't create {path}: {error.strerror}", "Set CUDA_AGENT_CACHE") from None
    return path


def compile_environment(folder: Path, device: Device, threads: int = MAX_COMPILE_THREADS) -> dict[str, str]:
    """What the compiler reads. On the CPU one thread: a pool of compiler processes takes longer to start than the few
    kernels take, and gigabytes of memory; on a GPU `threads`, or one for each core. On the CPU no precompiled header
    either: it would lie in the worker's scratch folder, so each session made it anew (6 s) even where all kernels are
    in the cache; it saves 2 s a kernel. Nor a library that tries the processor's vector instructions in every new
    folder (5 s): any g++ that we take knows them."""
    threads = 1 if device is Device.CPU else min(threads, os.cpu_count() or 1)
    on_cpu = {"TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0", "TORCHINDUCTOR_VEC_ISA_OK": "1"}
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(folder),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "TORCHINDUCTOR_COMPILE_THREADS": str(threads),
    } | (on_cpu if device is Device.CPU else {})


class StartWorker(Protocol):
    """Starts a worker of the baselines; one with `writable` folders may write there."""

    def __call__(self, *, writable: tuple[Path, ...]) -> Worker: ...


class _Form(NamedTuple):
    matched: bool
    compiled: bool


class Baselines:
    """Baselines of one session. Compilers keep what they make in `folder`."""

    def __init__(
        self,
        task: Task,
        options: JudgeOptions,
        start: StartWorker,
        folder: Path,
        *,
        autotune: bool = False,
        sharing: Sharing | None = None,
    ) -> None:
        self._task, self._options, self._start, self._folder = task, options, start, folder
        self._autotune = autotune
        #: no other form than eager is prepared; to be set before `begin`.
        self.eager_only = False
        self._sharing = sharing or Sharing()
        self._plain: Worker | None = None
        self._compiled: Worker | None = None
        self._forms: dict[str, _Form] = {}
        #: those with constant weights that are prepared.
        self._frozen: set[str] = set()
        self._failed: dict[str, str] = {}
        self._retired: dict[str, float] = {}
        self._left_out: dict[str, str] = {}
        #: bytes of the device, by the worker's id.
        self._held: dict[int, int] = {}
        self._compiled_reports: dict[str, CompileReport] = {}
        #: forms that found too little of the device's memory.
        self.out_of_memory: set[str] = set()
        self._error: CudaAgentError | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def begin(self) -> None:
        """Prepare in the background, while the builder or a policy works."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._prepare_and_keep, name="baselines", daemon=True)
            self._thread.start()

    def wait(self) -> None:
        """Returns when every form is prepared; dead workers are replaced. Raises TaskError where eager itself fails."""
        self.begin()
        assert self._thread is not None
        self._thread.join()
        if self._error is None and not self._alive() and not self._closed:
            self._prepare_and_keep()
        if self._error is not None:
            raise self._error

    def workers(self) -> tuple[Worker, ...]:
        """Those that run, prepared. Raises TaskError."""
        self.wait()
        return tuple(worker for worker in (self._plain, self._compiled) if worker is not None)

    def worker_of(self, name: str) -> Worker:
        """The one that runs a form, or the null program. Raises TaskError."""
        self.wait()
        form = self._forms.get(name)
        worker = self._compiled if form is not None and form.compiled else self._plain
        assert worker is not None
        return worker

    def freeze(self) -> None:
        """After `wait`: adds the forms whose weights are constants, the match for a candidate that derives its weights.
        One that fails is among `failed`. A dead worker is left to `wait`."""
        self.wait()
        for name in self._unfrozen() - self._failed.keys():
            worker = self.worker_of(name)
            try:
                with self._sharing.device_use():
                    prepared = self._prepare_in(worker, PrepareBaseline(baseline=name))
                    self._settle(worker)
                self._note_compiled(name, prepared)
                self._frozen.add(name)
            except WorkerFault as error:
                self.fail(name, error.fault.reason)
                if error.fault.kind is FaultKind.DEVICE:
                    worker.kill()

    def _unfrozen(self) -> set[str]:
        """Forms with constant weights that aren't prepared."""
        return {name for name in self._forms if Baseline.parse(name).frozen} - self._frozen

    @property
    def forms(self) -> Mapping[str, bool]:
        """Names of the forms that work -> whether their arithmetic is the precision policy's. After `wait`."""
        gone = self._failed.keys() | self._retired.keys() | self._left_out.keys() | self._unfrozen()
        return {name: form.matched for name, form in self._forms.items() if name not in gone}

    @property
    def retired(self) -> Mapping[str, float]:
        """Forms that take part in no further timing -> how many times slower they were than the fastest matched one."""
        return dict(self._retired)

    @property
    def left_out(self) -> Mapping[str, str]:
        """Forms that weren't prepared, since they can't be the fastest -> why."""
        return dict(self._left_out)

    @property
    def held_bytes(self) -> int | None:
        """The bytes of device memory that the workers hold besides their contexts, as they reported when they were last
        prepared or had a form retired; None while one is being prepared."""
        if self._thread is None or self._thread.is_alive() or not self._alive():
            return None
        return sum(self._held.get(worker.pid, 0) for worker in (self._plain, self._compiled) if worker is not None)

    @property
    def failed(self) -> Mapping[str, str]:
        """Forms that couldn't be prepared or run, with the reason."""
        return dict(self._failed)

    @property
    def compiled(self) -> Mapping[str, CompileReport]:
        """What the compiler made of each form, as its worker says."""
        return dict(self._compiled_reports)

    def fail(self, name: str, reason: str) -> None:
        """A form failed when it was run; it is left out from now on."""
        self._failed[name] = _shortened(reason)

    def retire(self, name: str, times: float) -> None:
        """A form was so many times slower than the fastest matched one: it is timed no more, and its memory given
        back."""
        worker = self.worker_of(name)
        self._retired[name] = times
        try:
            retired = worker.request(RetireBaseline(baseline=name), timeout_s=self._options.call_timeout_s)
            self._held[worker.pid] = retired.held_bytes
        except WorkerFault:
            # Prepared anew when it is next needed, without this form.
            worker.kill()

    def close(self) -> None:
        self._closed = True
        self._end_workers()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=10.0)

    def _alive(self) -> bool:
        wanted = (self._plain,) if self.eager_only else (self._plain, self._compiled)
        return all(worker is not None and worker.alive for worker in wanted)

    def _end_workers(self) -> None:
        for worker in (self._plain, self._compiled):
            if worker is not None:
                worker.kill()

    def _prepare_and_keep(self) -> None:
        try:
            while not self._closed and not self._prepared():
                pass
        except CudaAgentError as error:
            self._error = error

    def _prepared(self) -> bool:
        """One attempt with fresh workers; False when a form took one down."""
        self._end_workers()
        self._plain = self._start(writable=())
        self._compiled = None if self.eager_only else self._start(writable=(self._folder,))
        workers = [worker for worker in (self._plain, self._compiled) if worker is not None]
        # On a GPU the imports, which take seconds, need no device.
        on_cpu = self._options.device is Device.CPU
        with self._sharing.device_use() if on_cpu else contextlib.nullcontext():
            self._import(workers)
        with self._sharing.device_use():
            for worker in workers:
                worker.begin()
            return self._prepare()

    def _import(self, workers: Sequence[Worker]) -> None:
        if self._compiled is not None:
            device = self._options.device
            environment = compile_environment(self._folder, device, self._sharing.compile_threads)
            self._compiled.imported(ImportCompiler(device=device, environment=environment))
        with ThreadPoolExecutor(len(workers)) as side_by_side:
            list(side_by_side.map(lambda worker: worker.import_task(self._task), workers))

    def _prepare(self) -> bool:
        assert self._plain is not None
        self._frozen.clear()
        self._forms = self._load(self._plain, compiled=False)
        if self._compiled is not None:
            self._forms |= self._load(self._compiled, compiled=True)
        return all(self._prepare_form(name) for name in self.forms) and self._settle_all()

    def _prepare_form(self, name: str) -> bool:
        """False where it took its worker down. Raises TaskError."""
        worker = self._compiled if self._forms[name].compiled else self._plain
        assert worker is not None
        request = PrepareBaseline(baseline=name, bandwidth=_bandwidth(self._options.device))
        try:
            prepared = self._prepare_in(worker, request)
        except WorkerFault as error:
            if name == EAGER or self._closed:
                raise self._task_error(error) from None
            self.fail(name, error.fault.reason)
            if error.fault.verdict is Verdict.OUT_OF_MEMORY:
                self.out_of_memory.add(name)
            return worker.alive and error.fault.kind is not FaultKind.DEVICE
        if prepared.left_out:
            self._left_out[name] = _shortened(prepared.left_out)
        self._note_compiled(name, prepared)
        return True

    def _prepare_in(self, worker: Worker, request: PrepareBaseline) -> PreparedBaseline:
        return worker.request(request, timeout_s=self._options.compile_baseline_timeout_s)

    def _settle_all(self) -> bool:
        try:
            for worker in filter(None, (self._plain, self._compiled)):
                self._settle(worker)
        except WorkerFault as error:
            raise self._task_error(error) from None
        return True

    def _settle(self, worker: Worker) -> None:
        settled = worker.request(SettleBaselines(), timeout_s=self._options.call_timeout_s)
        self._held[worker.pid] = settled.held_bytes

    def _note_compiled(self, name: str, prepared: PreparedBaseline) -> None:
        report = prepared.compiled
        if report is not None:
            reasons = tuple(_shortened(reason) for reason in report.reasons[:8])
            self._compiled_reports[name] = report.model_copy(update={"reasons": reasons})

    def _load(self, worker: Worker, *, compiled: bool) -> dict[str, _Form]:
        """Loads the task, and learns which forms there are for this worker."""
        request = PlanBaselines(
            name=self._task.name,
            source=self._task.source,
            precision=self._options.precision,
            autotune=self._autotune,
            compiled=compiled,
        )
        try:
            matched = worker.request(request, timeout_s=_LOAD_TIMEOUT_S).matched
        except WorkerFault as error:
            raise self._task_error(error) from None
        if (EAGER in matched) is compiled:
            raise WorkerError("The baseline worker named no forms", "Run again")
        return {name: _Form(policy, compiled) for name, policy in matched.items()}

    def _task_error(self, error: WorkerFault) -> TaskError:
        cause, remedy = error.fault.reason, error.fault.remedy
        if error.fault.verdict is Verdict.OUT_OF_MEMORY:
            return OutOfMemory(cause, remedy or "Shrink the task", detail=error.fault.log_tail)
        if error.fault.kind is not FaultKind.TASK:
            cause, remedy = f"{self._task.name}: the baseline worker: {cause}", "Correct or shrink the task"
        return TaskError(cause, remedy, detail=error.fault.log_tail)


def _bandwidth(device: Device) -> float | None:
    """Returns the device memory's bandwidth in bytes/s by its datasheet."""
    if device is not Device.CUDA:
        return None
    import torch

    peak = datasheet(torch.cuda.get_device_properties(0).name)
    return None if peak is None else peak.memory_tb_s * 1e12


def _shortened(reason: str) -> str:
    return " ".join(reason.split())[:500]
