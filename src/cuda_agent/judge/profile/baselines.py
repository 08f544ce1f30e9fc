"""The judge's view of the baselines' two workers. They are compiled once per session, in the background, and kept;
their times are not.

Eager runs in a process like a candidate's, which has loaded torch and no compiler, because the thousand modules of a
compiler make calls of a few microseconds some 5 % slower. The compiled forms share the other worker.

A form that fails to compile, or ends its worker, is left out with its reason; the workers are then replaced and the
other forms prepared again. Eager is the task itself: when it fails, the task can't be judged.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from cuda_agent.core.baselines import EAGER, Baseline
from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device, Verdict
from cuda_agent.core.errors import CudaAgentError, OutOfMemory, TaskError, WorkerError
from cuda_agent.core.files import cache_dir
from cuda_agent.core.records import CompileReport, Task
from cuda_agent.judge.profile.roofline import datasheet
from cuda_agent.judge.sharing import MAX_COMPILE_THREADS, Sharing
from cuda_agent.workers.process import Worker, WorkerFault
from cuda_agent.workers.requests import FaultKind
from cuda_agent.workers.requests import baseline as requests

NULL = "null"
_LOAD_TIMEOUT_S = 600.0


def compile_cache(task: Task) -> Path:
    """Returns the folder in which a task's compiled forms survive the session. Only its baseline worker writes
    there."""
    return cache_dir("inductor", task.key[:32])


def compile_environment(folder: Path, device: Device, threads: int = MAX_COMPILE_THREADS) -> dict[str, str]:
    """Returns the compiler's environment.

    On the CPU it compiles in one thread: a pool of compiler processes takes longer to start than the few kernels take,
    and gigabytes of memory. On a GPU it uses `threads`, or one for each core. On the CPU it has no precompiled header,
    which would be in the worker's scratch folder, so that each session would make it again (6 s) even with all kernels
    in the cache; it would save 2 s a kernel. It also skips the library that tries the processor's vector instructions
    in every new folder (5 s), since every supported g++ knows them.
    """
    threads = 1 if device is Device.CPU else min(threads, os.cpu_count() or 1)
    on_cpu = {"TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0", "TORCHINDUCTOR_VEC_ISA_OK": "1"}
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(folder),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "TORCHINDUCTOR_COMPILE_THREADS": str(threads),
    } | (on_cpu if device is Device.CPU else {})


class _Form(NamedTuple):
    matched: bool
    compiled: bool


class Baselines:
    """The baselines of one session. Compilers keep their outputs in `folder`. `start(writable=folders)` starts a
    worker."""

    def __init__(
        self,
        task: Task,
        options: JudgeOptions,
        start: Callable[..., Worker],
        folder: Path,
        *,
        sharing: Sharing | None = None,
    ) -> None:
        self._task, self._options, self._start, self._folder = task, options, start, folder
        #: only eager is prepared. Set it before `begin`.
        self.eager_only = False
        self._sharing = sharing or Sharing()
        self._plain: Worker | None = None
        self._compiled: Worker | None = None
        self._forms: dict[str, _Form] = {}
        #: prepared forms with constant weights.
        self._frozen: set[str] = set()
        #: forms that couldn't be prepared or run -> the reason.
        self.failed: dict[str, str] = {}
        #: forms that take part in no further timing -> how many times slower they were than the fastest matched one.
        self.retired: dict[str, float] = {}
        #: forms that weren't prepared, since they can't be the fastest -> the reason.
        self.left_out: dict[str, str] = {}
        #: the compilation of each form, as its worker reports it.
        self.compiled: dict[str, CompileReport] = {}
        #: bytes of device memory by the worker's id.
        self._held: dict[int, int] = {}
        #: forms that found too little device memory.
        self.out_of_memory: set[str] = set()
        self._error: CudaAgentError | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def begin(self) -> None:
        """Prepares in the background, while the builder or a policy works, if anything must be compiled."""
        if self._thread is None and not self.eager_only:
            self._thread = threading.Thread(target=self._prepare_and_keep, name="baselines", daemon=True)
            self._thread.start()

    def wait(self) -> None:
        """Returns when every form is prepared. Dead workers are replaced. Raises TaskError where eager fails."""
        self.begin()
        if self._thread is not None:
            self._thread.join()
        if self._error is None and not self._alive() and not self._closed:
            self._prepare_and_keep()
        if self._error is not None:
            raise self._error

    def workers(self) -> tuple[Worker, ...]:
        """Returns the running, prepared workers. Raises TaskError."""
        self.wait()
        return self._workers

    @property
    def _workers(self) -> tuple[Worker, ...]:
        return tuple(worker for worker in (self._plain, self._compiled) if worker is not None)

    def worker_of(self, name: str) -> Worker:
        """Returns the worker that runs a form, or the null program. Raises TaskError."""
        self.wait()
        form = self._forms.get(name)
        worker = self._compiled if form is not None and form.compiled else self._plain
        assert worker is not None
        return worker

    def freeze(self) -> None:
        """Adds the forms whose weights are constants, after `wait`, to compare with a candidate that derives its
        weights. A form that fails is among `failed`. A dead worker is left to `wait`."""
        self.wait()
        timeout_s = self._options.compile_baseline_timeout_s
        for name in self._unfrozen() - self.failed.keys():
            worker = self.worker_of(name)
            try:
                with self._sharing.device_use():
                    prepared = worker.request(requests.PrepareBaseline(baseline=name), timeout_s=timeout_s)
                    self._settle(worker)
                self._note_compiled(name, prepared)
                self._frozen.add(name)
            except WorkerFault as error:
                self.fail(name, error.fault.reason)
                if error.fault.kind is FaultKind.DEVICE:
                    worker.kill()

    def _unfrozen(self) -> set[str]:
        """Returns forms with constant weights that aren't prepared."""
        return {name for name in self._forms if Baseline.parse(name).frozen} - self._frozen

    @property
    def forms(self) -> Mapping[str, bool]:
        """The names of the working forms -> whether their arithmetic is the precision policy's. Valid after `wait`."""
        gone = self.failed.keys() | self.retired.keys() | self.left_out.keys() | self._unfrozen()
        return {name: form.matched for name, form in self._forms.items() if name not in gone}

    @property
    def held_bytes(self) -> int | None:
        """The bytes of device memory that the workers hold besides their contexts, as they reported when they were last
        prepared or had a form retired; None while one is being prepared."""
        if (self._thread is not None and self._thread.is_alive()) or not self._alive():
            return None
        return sum(self._held.get(worker.pid, 0) for worker in self._workers)

    def fail(self, name: str, reason: str) -> None:
        """Leaves out a form that failed when it ran."""
        self.failed[name] = _shortened(reason)

    def retire(self, name: str, times: float) -> None:
        """Stops timing a form that was this many times slower than the fastest matched one, and frees its memory."""
        worker = self.worker_of(name)
        self.retired[name] = times
        try:
            retired = worker.request(requests.RetireBaseline(baseline=name), timeout_s=self._options.call_timeout_s)
            self._held[worker.pid] = retired.held_bytes
        except WorkerFault:
            # The workers are prepared again when needed, without this form.
            worker.kill()

    def close(self) -> None:
        self._closed = True
        self._end_workers()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=10.0)

    def _alive(self) -> bool:
        wanted = 1 if self.eager_only else 2
        return len(self._workers) >= wanted and all(worker.alive for worker in self._workers[:wanted])

    def _end_workers(self) -> None:
        for worker in self._workers:
            worker.kill()

    def _prepare_and_keep(self) -> None:
        try:
            while not self._closed and not self._prepared():
                pass
        except CudaAgentError as error:
            self._error = error

    def _prepared(self) -> bool:
        """Tries once with fresh workers. Returns False when a form ended one."""
        self._end_workers()
        self._plain = self._start(writable=())
        self._compiled = None if self.eager_only else self._start(writable=(self._folder,))
        # On a GPU the imports, which take seconds, need no device.
        on_cpu = self._options.device is Device.CPU
        with self._sharing.device_use() if on_cpu else contextlib.nullcontext():
            self._import()
        with self._sharing.device_use():
            for worker in self._workers:
                worker.begin()
            return self._prepare()

    def _import(self) -> None:
        if self._compiled is not None:
            device = self._options.device
            environment = compile_environment(self._folder, device, self._sharing.compile_threads)
            self._compiled.without_device(requests.ImportCompiler(device=device, environment=environment))
        with ThreadPoolExecutor(2) as side_by_side:
            list(side_by_side.map(lambda worker: worker.import_task(self._task), self._workers))

    def _prepare(self) -> bool:
        assert self._plain is not None
        self._frozen.clear()
        self._forms = self._load(self._plain, compiled=False)
        if self._compiled is not None:
            self._forms |= self._load(self._compiled, compiled=True)
        if not all(self._prepare_form(name) for name in self.forms):
            return False
        for worker in self._workers:
            try:
                self._settle(worker)
            except WorkerFault as error:
                raise self._task_error(error) from None
        return True

    def _prepare_form(self, name: str) -> bool:
        """Prepares a form. Returns False where it ended its worker. Raises TaskError."""
        worker = self._compiled if self._forms[name].compiled else self._plain
        assert worker is not None
        request = requests.PrepareBaseline(baseline=name, bandwidth=_bandwidth(self._options.device))
        try:
            prepared = worker.request(request, timeout_s=self._options.compile_baseline_timeout_s)
        except WorkerFault as error:
            if name == EAGER or self._closed:
                raise self._task_error(error) from None
            self.fail(name, error.fault.reason)
            if error.fault.verdict is Verdict.OUT_OF_MEMORY:
                self.out_of_memory.add(name)
            return worker.alive and error.fault.kind is not FaultKind.DEVICE
        if prepared.left_out:
            self.left_out[name] = _shortened(prepared.left_out)
        self._note_compiled(name, prepared)
        return True

    def _settle(self, worker: Worker) -> None:
        settled = worker.request(requests.SettleBaselines(), timeout_s=self._options.call_timeout_s)
        self._held[worker.pid] = settled.held_bytes

    def _note_compiled(self, name: str, prepared: requests.PreparedBaseline) -> None:
        report = prepared.compiled
        if report is not None:
            reasons = tuple(_shortened(reason) for reason in report.reasons[:8])
            self.compiled[name] = report.model_copy(update={"reasons": reasons})

    def _load(self, worker: Worker, *, compiled: bool) -> dict[str, _Form]:
        """Loads the task, and learns which forms this worker has."""
        request = requests.PlanBaselines(
            name=self._task.name,
            source=self._task.source,
            precision=self._options.precision,
            autotune=self._options.autotune,
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
