"""The judge's view of the baseline worker: compiled once per session, in the background, and kept. Its times never are.

A form that fails to compile, or takes its worker down with it, is left out with its reason; the worker is then
replaced and the others are prepared again. Eager is the task itself: when it fails, the task can't be judged.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device
from cuda_agent.core.errors import CudaAgentError, StoreError, TaskError, WorkerError
from cuda_agent.core.files import cache_dir
from cuda_agent.core.records import Task
from cuda_agent.judge.process import Worker, WorkerFault

EAGER = "eager"
MAX_COMPILE_THREADS = 4
_LOAD_TIMEOUT_S = 600.0


def compile_cache(task: Task) -> Path:
    """The folder in which a task's compiled forms survive the session; only its baseline worker writes there."""
    path = cache_dir() / "inductor" / task.key[:32]
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"Can't create {path}: {error.strerror}", "Set CUDA_AGENT_CACHE") from None
    return path


def compile_environment(folder: Path, device: Device) -> dict[str, str]:
    """What the compiler reads. On the CPU one thread: a pool of compiler processes takes longer to start than the few
    kernels take, and gigabytes of memory."""
    threads = 1 if device is Device.CPU else min(MAX_COMPILE_THREADS, os.cpu_count() or 1)
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(folder),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "TORCHINDUCTOR_COMPILE_THREADS": str(threads),
    }


class Baselines:
    """Baselines of one session. `start` makes a new baseline worker, which may write into `folder`."""

    def __init__(
        self, task: Task, options: JudgeOptions, start: Callable[[], Worker], folder: Path, *, autotune: bool = False
    ) -> None:
        self._task, self._options, self._start, self._folder = task, options, start, folder
        self._autotune = autotune
        #: forms that are prepared at all, where not all are wanted; to be set before `begin`.
        self.only: tuple[str, ...] | None = None
        self._worker: Worker | None = None
        self._forms: dict[str, bool] = {}
        self._failed: dict[str, str] = {}
        self._error: CudaAgentError | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def begin(self) -> None:
        """Prepare in the background, while the builder or a policy works."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._prepare_and_keep, name="baselines", daemon=True)
            self._thread.start()

    def wait(self) -> Worker:
        """The worker with every form prepared; a dead one is replaced. Raises TaskError where eager itself fails."""
        self.begin()
        assert self._thread is not None
        self._thread.join()
        if self._error is None and (self._worker is None or not self._worker.alive) and not self._closed:
            self._prepare_and_keep()
        if self._error is not None:
            raise self._error
        assert self._worker is not None
        return self._worker

    def freeze(self) -> None:
        """After `wait`: adds the form whose weights are constants, the match for a candidate that derives its weights.
        Where it fails, that is among `failed`. A dead worker is left to `wait`."""
        name = f"frozen_{self._options.precision}"
        if name in self._forms or name in self._failed:
            return
        worker = self.wait()
        try:
            worker.request("freeze", {}, timeout_s=self._options.compile_baseline_timeout_s)
            worker.request("settle", {}, timeout_s=self._options.call_timeout_s)
            self._forms[name] = True
        except WorkerFault as error:
            self.fail(name, error.fault.reason)
            if error.fault.kind == "device":
                worker.kill()

    @property
    def forms(self) -> Mapping[str, bool]:
        """Names of the forms that work -> whether their arithmetic is the precision policy's. After `wait`."""
        return {name: matched for name, matched in self._forms.items() if name not in self._failed}

    @property
    def failed(self) -> Mapping[str, str]:
        """Forms that couldn't be prepared or run, with the reason."""
        return dict(self._failed)

    def fail(self, name: str, reason: str) -> None:
        """A form failed when it was run; it is left out from now on."""
        self._failed[name] = _shortened(reason)

    def close(self) -> None:
        self._closed = True
        if self._worker is not None:
            self._worker.kill()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=10.0)

    def _prepare_and_keep(self) -> None:
        try:
            while not self._closed and not self._prepare():
                pass
        except CudaAgentError as error:
            self._error = error

    def _prepare(self) -> bool:
        """One attempt with a fresh worker; False when a form took it down."""
        if self._worker is not None:
            self._worker.kill()
        worker = self._worker = self._start()
        self._load(worker)
        for name in self.forms:
            try:
                worker.request("prepare", {"form": name}, timeout_s=self._options.compile_baseline_timeout_s)
            except WorkerFault as error:
                if name == EAGER or self._closed:
                    raise self._task_error(error) from None
                self.fail(name, error.fault.reason)
                if not worker.alive or error.fault.kind == "device":
                    return False
        try:
            worker.request("settle", {}, timeout_s=self._options.call_timeout_s)
        except WorkerFault as error:
            raise self._task_error(error) from None
        return True

    def _load(self, worker: Worker) -> None:
        params = {
            "name": self._task.name,
            "source": self._task.source,
            "precision": self._options.precision.value,
            "seed": 0,
            "autotune": self._autotune,
            "environment": compile_environment(self._folder, self._options.device),
        }
        try:
            reply = worker.request("load", params, timeout_s=_LOAD_TIMEOUT_S)
        except WorkerFault as error:
            raise self._task_error(error) from None
        forms = _checked_forms(reply)
        self._forms = {name: matched for name, matched in forms.items() if self.only is None or name in self.only}

    def _task_error(self, error: WorkerFault) -> TaskError:
        cause, _, remedy = error.fault.reason.partition("\n")
        if error.fault.kind != "task":
            cause, remedy = f"{self._task.name}: the baseline worker: {cause}", "Correct or shrink the task"
        return TaskError(cause, remedy, detail=error.fault.log_tail)


def _checked_forms(reply: Any) -> dict[str, bool]:
    try:
        forms = {str(form["name"]): bool(form["matched"]) for form in reply["forms"][:16]}
    except (KeyError, TypeError):
        forms = {}
    if EAGER not in forms:
        raise WorkerError("The baseline worker named no forms", "Run again")
    return forms


def _shortened(reason: str) -> str:
    return " ".join(reason.split())[:500]
