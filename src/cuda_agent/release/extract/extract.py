"""`extract`: the sandboxed process that takes the user's model apart, and the folder of tasks that is made of it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from cuda_agent.core import bytecode
from cuda_agent.core.enums import Device, SandboxLevel
from cuda_agent.core.errors import StoreError, TaskError, UsageError, WorkerError
from cuda_agent.core.extraction import ExtractedTask, Extraction, LeftOut
from cuda_agent.core.files import write_durably
from cuda_agent.core.graph import TensorMeta
from cuda_agent.core.record import Record
from cuda_agent.core.records import Task
from cuda_agent.core.stack import read_stack
from cuda_agent.release.extract.specs import WholeSource
from cuda_agent.workers.gpulock import gpu_lock, gpu_uuid
from cuda_agent.workers.process import memory_limit_mib
from cuda_agent.workspace.sandbox import SandboxLimits, SandboxSpec, spawn

_PACKAGES = Path(__file__).resolve().parents[3]
_MEMORY_MIB = 1 << 20
_POLL_S = 0.05
_MOST_BYTES = 64 << 20
#: idle threads don't spin on the cores of others; there is no network in the sandbox.
_ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "HF_HUB_OFFLINE": "1"}

Say = Callable[[str, str], None]


class _FoundTask(Record):
    """A task as the sandboxed process tells it."""

    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=200)
    source: str
    kind: str
    origin: str
    paths: tuple[str, ...]
    calls: int
    time_us: float
    share: float
    operators: int
    weights: int
    call: dict[str, Any]
    inputs: tuple[TensorMeta, ...]


class Found(Record):
    """What the sandboxed process found; the user's code ran in it, so that none of it is believed unread."""

    total_us: float = Field(gt=0)
    outside_us: float
    note: str
    tasks: tuple[_FoundTask, ...]
    left_out: tuple[LeftOut, ...]


def extract(
    whole: WholeSource,
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
    say: Say = lambda phase, text: None,
) -> tuple[Extraction, str]:
    """The record, which is also in `out`, beside the tasks' files and `whole.py`; and a note on how time was taken.

    `model`: what the user called it. `top`: most tasks. `operators`: most operators of a task. `readable`: folders
    that the model's code may read besides its own.

    Raises UsageError (`out` holds something), TaskError (the model fails), WorkerError, SandboxError, StoreError.
    """
    _check_free(out)
    job = {"source": whole.source, "name": whole.name, "folders": [str(path) for path in whole.folders],
           "device": device.value, "seed": seed, "top": top, "operators": operators}  # fmt: skip
    say("extract", "running the model in its sandbox")
    with gpu_lock(gpu_uuid(device) or "cpu", waiting=lambda who: say("extract", f"waiting for {who}")):
        found = _checked(_taken_apart(job, whole, device, level, readable, timeout_s), whole.name)
    extraction = Extraction(
        model=model,
        name=whole.name,
        source=whole.source,
        folders=tuple(str(path) for path in whole.folders),
        device=device,
        total_us=found.total_us,
        outside_us=found.outside_us,
        tasks=tuple(_record(task) for task in found.tasks),
        left_out=found.left_out,
        sandbox=level,
        stack=read_stack(),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    for task in found.tasks:
        write_durably(out / "tasks" / f"{task.name}.py", task.source)
    write_durably(out / "whole.py", whole.source)
    # Last: a folder with this file is whole.
    extraction.write(out)
    return extraction, found.note


def _record(task: _FoundTask) -> ExtractedTask:
    key = Task(name=task.name, source=task.source).key
    return ExtractedTask(key=key, file=f"tasks/{task.name}.py", **task.model_dump(exclude={"source"}))


def _check_free(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file", "Choose another --out")
    # One without tasks is nothing that anybody goes on from.
    if (out / Extraction.file_name).exists() and read_extraction(out).tasks:
        raise UsageError(f"{out} holds an extraction already", "Choose another --out, or remove it")
    above = next(path for path in (out.absolute(), *out.absolute().parents) if path.exists())
    if not os.access(above, os.W_OK):
        raise StoreError(f"{out} can't be written", "Choose another --out")
    tasks = out / "tasks"
    if tasks.is_dir() and any(tasks.iterdir()):
        raise UsageError(f"{tasks} isn't empty", "Choose another --out, or remove it")


def _taken_apart(
    job: dict[str, Any],
    whole: WholeSource,
    device: Device,
    level: SandboxLevel,
    readable: Sequence[Path],
    timeout_s: float,
) -> str:
    """The answer of the sandboxed process, as text."""
    with tempfile.TemporaryDirectory(prefix="cuda-agent-extract-") as name:
        folder = Path(name)
        scratch, compiled = folder / "scratch", bytecode.environment()
        scratch.mkdir()
        (folder / "job.json").write_text(json.dumps(job))
        result = scratch / "result.json"
        own = {"PYTHONPATH": os.pathsep.join(map(str, whole.folders))} if whole.folders else {}
        spec = SandboxSpec(
            scratch=scratch,
            level=level,
            readable=(folder, _PACKAGES, *whole.folders, *readable, *map(Path, compiled.values())),
            environment=compiled | own | _ENVIRONMENT,
            gpu=device is Device.CUDA,
            limits=SandboxLimits(memory_mib=memory_limit_mib(_MEMORY_MIB), disk_mib=4096),
        )
        module = "cuda_agent.release.extract.worker"
        command = [sys.executable, "-P", "-m", module, str(folder / "job.json"), str(result)]
        end = time.monotonic() + timeout_s
        with spawn(command, spec, cwd=scratch, log=folder / "log") as process:
            while process.poll() is None:
                if time.monotonic() > end:
                    raise TaskError(
                        f"{whole.name} wasn't taken apart within {timeout_s:.0f} s", "Use smaller inputs, or --timeout"
                    )
                time.sleep(_POLL_S)
            limit, code, tail = process.limit_hit, process.poll(), process.tail()
        if limit is not None:
            raise TaskError(f"{whole.name} exceeded the sandbox's limit of {limit}", "Use a smaller model", detail=tail)
        return _read(result, whole.name, code, tail)


def _read(result: Path, name: str, code: int | None, tail: str) -> str:
    """The answer's file was written by a process that ran the user's code: a plain file of bounded size."""
    with contextlib.suppress(OSError):
        handle = os.open(result, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as stream:
            raw = stream.read(_MOST_BYTES + 1)
        if code == 0 and 0 < len(raw) <= _MOST_BYTES:
            return raw.decode(errors="replace")
    last = next((line for line in reversed(tail.splitlines()) if line.strip()), "it said nothing")
    raise TaskError(f"{name} ended its process (code {code}): {last.strip()[:300]}", "See --debug", detail=tail)


def _checked(text: str, name: str) -> Found:
    """Raises TaskError (the user's to mend), WorkerError (no answer)."""
    try:
        told = json.loads(text)
        error = told.get("error")
        if isinstance(error, dict):
            raise TaskError(str(error["cause"]), str(error["remedy"]), detail=str(error["detail"]))
        return Found.model_validate(told)
    except (ValueError, KeyError, AttributeError) as problem:
        first = problem.errors()[0] if isinstance(problem, ValidationError) else problem
        raise WorkerError(f"{name} was taken apart without a readable answer: {first}", "Run again") from None


def read_extraction(folder: Path) -> Extraction:
    """Raises UsageError where there is none, StoreError where it can't be read."""
    if not (folder / Extraction.file_name).is_file():
        raise UsageError(f"{folder} holds no extraction", "Give the folder that `cuda-agent extract` wrote")
    return Extraction.read(folder)


__all__ = ["Extraction", "StoreError", "extract", "read_extraction"]
