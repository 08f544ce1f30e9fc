"""`extract`: runs the user's model in a sandboxed process and writes the folder of tasks that the process found."""

import contextlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from cuda_agent.agent.context import Progress
from cuda_agent.core import bytecode
from cuda_agent.core.assets import PACKAGES, program
from cuda_agent.core.enums import Device, SandboxLevel
from cuda_agent.core.errors import TaskError, UsageError, WorkerError
from cuda_agent.core.extraction import ExtractedTask, Extraction
from cuda_agent.core.files import check_unused, check_writable, write_durably
from cuda_agent.core.record import now
from cuda_agent.core.records import Task
from cuda_agent.core.stack import read_stack
from cuda_agent.release.extract.exchange import DraftTask, ExtractionAnswer, ExtractionJob, Findings
from cuda_agent.release.extract.specs import WholeModelSource
from cuda_agent.workers.gpulock import gpu_lock, gpu_uuid
from cuda_agent.workers.process import memory_limit_mib
from cuda_agent.workspace.sandbox import SandboxLimits, SandboxSpec, spawn
from cuda_agent.workspace.temporary import temporary_folder

_MEMORY_MIB = 1 << 20
_MOST_BYTES = 64 << 20
#: idle threads don't spin on the cores of other processes; the sandbox has no network.
_ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "HF_HUB_OFFLINE": "1"}


def extract(
    whole: WholeModelSource,
    out: Path,
    *,
    model: str,
    device: Device,
    level: SandboxLevel,
    top: int = 5,
    operators: int = 32,
    readable: Sequence[Path] = (),
    timeout_s: float = 600.0,
    seed: int = 0,
    say: Progress = lambda phase, text: None,
) -> tuple[Extraction, str]:
    """Writes the tasks' files, `whole.py` and the record into `out`. Returns the record, and a note on how the time was
    taken.

    `model` is the user's name for the model, `top` the most tasks, `operators` the most operators of a task. `readable`
    are folders that the model's code may read besides its own. The process may run for `timeout_s` seconds.

    Raises UsageError when `out` isn't free, TaskError when the model fails, WorkerError, SandboxError, StoreError.
    """
    _check_free(out)
    folders = tuple(str(path) for path in whole.folders)
    job = ExtractionJob(
        source=whole.source, name=whole.name, folders=folders, device=device, seed=seed, top=top, operators=operators
    )
    say("extract", "running the model in its sandbox")
    with gpu_lock(gpu_uuid(device) or "cpu", waiting=lambda holder: say("extract", f"waiting for {holder}")):
        found = _checked(_run(job, whole, level, readable, timeout_s), whole.name)
    extraction = Extraction(
        model=model,
        name=whole.name,
        source=whole.source,
        folders=folders,
        device=device,
        total_us=found.total_us,
        outside_us=found.outside_us,
        tasks=tuple(_record(task) for task in found.tasks),
        left_out=found.left_out,
        sandbox=level,
        stack=read_stack(),
        started=now(),
    )
    for task in found.tasks:
        write_durably(out / "tasks" / f"{task.name}.py", task.source)
    write_durably(out / "whole.py", whole.source)
    # This file is written last: a folder that has it is complete.
    extraction.write(out)
    return extraction, found.note


def _record(task: DraftTask) -> ExtractedTask:
    key = Task(name=task.name, source=task.source).key
    fields = task.model_dump(exclude={"source", "key", "file"})
    return ExtractedTask(key=key, file=f"tasks/{task.name}.py", **fields)


def _check_free(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file", "Choose another --out")
    # An extraction without tasks may be replaced.
    if (out / Extraction.file_name).exists() and read_extraction(out).tasks:
        raise UsageError(f"{out} holds an extraction already", "Choose another --out, or remove it")
    check_writable(out)
    check_unused(out / "tasks")


def _run(
    job: ExtractionJob, whole: WholeModelSource, level: SandboxLevel, readable: Sequence[Path], timeout_s: float
) -> str:
    """Runs the sandboxed process. Returns its answer as text."""
    with temporary_folder("extract") as folder:
        scratch, compiled = folder / "scratch", bytecode.environment()
        scratch.mkdir()
        (folder / "job.json").write_text(job.model_dump_json())
        result = scratch / "result.json"
        own = {"PYTHONPATH": os.pathsep.join(map(str, whole.folders))} if whole.folders else {}
        spec = SandboxSpec(
            scratch=scratch,
            level=level,
            readable=(folder, PACKAGES, *whole.folders, *readable, *map(Path, compiled.values())),
            environment=compiled | own | _ENVIRONMENT,
            gpu=job.device is Device.CUDA,
            limits=SandboxLimits(memory_mib=memory_limit_mib(_MEMORY_MIB), disk_mib=4096),
        )
        command = program("cuda_agent.release.extract.worker", str(folder / "job.json"), str(result))
        with spawn(command, spec, cwd=scratch, log=folder / "log") as process:
            try:
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                cause = f"{whole.name} was not extracted within {timeout_s:.0f} s"
                raise TaskError(cause, "Use smaller inputs, or --timeout") from None
            limit, code, tail = process.limit_hit, process.poll(), process.tail()
        if limit is not None:
            raise TaskError(f"{whole.name} exceeded the sandbox's limit of {limit}", "Use a smaller model", detail=tail)
        return _read(result, whole.name, code, tail)


def _read(result: Path, name: str, code: int | None, tail: str) -> str:
    """Returns the text of the answer. The process ran the user's code, so its file must be plain and of bounded
    size."""
    with contextlib.suppress(OSError):
        handle = os.open(result, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as stream:
            raw = stream.read(_MOST_BYTES + 1)
        if code == 0 and 0 < len(raw) <= _MOST_BYTES:
            return raw.decode(errors="replace")
    last = next((line for line in reversed(tail.splitlines()) if line.strip()), "it printed nothing")
    raise TaskError(f"{name} ended its process (code {code}): {last.strip()[:300]}", "See --debug", detail=tail)


def _checked(text: str, name: str) -> Findings:
    """Raises TaskError for an error that the user can correct, WorkerError where the answer isn't valid."""
    try:
        answer = ExtractionAnswer.model_validate_json(text)
    except ValidationError as error:
        raise WorkerError(f"The process of {name} gave no valid answer: {error.errors()[0]}", "Run again") from None
    if answer.cause:
        raise TaskError(answer.cause, answer.remedy, detail=answer.detail)
    if answer.findings is None:
        raise WorkerError(f"The process of {name} gave an empty answer", "Run again")
    return answer.findings


def read_extraction(folder: Path) -> Extraction:
    """Reads the record of an extraction. Raises UsageError where the folder has none, StoreError where it can't be
    read."""
    if not (folder / Extraction.file_name).is_file():
        raise UsageError(f"{folder} holds no extraction", "Give the folder that `cuda-agent extract` wrote")
    return Extraction.read(folder)
