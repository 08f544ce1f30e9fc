"""Runs one call of a candidate from files, so that a tool of CUDA can trace it.

A traced candidate has a sandbox of its own without the filter of system calls, and no buffer of the judge.
"""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cuda_agent.core.assets import PACKAGES
from cuda_agent.core.enums import Device
from cuda_agent.core.graph import TensorMeta
from cuda_agent.core.records import Candidate
from cuda_agent.core.stack import find_nvcc
from cuda_agent.judge.resources import Resources
from cuda_agent.judge.verify.candidate import MODEL_FILE, write_candidate
from cuda_agent.judge.verify.reference import Places
from cuda_agent.workers.buffers import extent_bytes
from cuda_agent.workers.process import memory_limit_mib
from cuda_agent.workspace.sandbox import SandboxLimits, SandboxSpec, spawn

_OUTPUT_BYTES = 8 << 20


def find_cuda_tool(name: str, folders: Sequence[str] = ("bin",), more: Iterable[Path] = ()) -> Path | None:
    """Finds a program on PATH, in these folders of a CUDA toolkit, or among `more` paths."""
    nvcc = find_nvcc()
    homes = [os.environ.get("CUDA_HOME"), str(Path(nvcc).resolve().parents[1]) if nvcc else None, "/usr/local/cuda"]
    found = shutil.which(name)
    paths = [Path(found)] if found else []
    paths += [Path(home) / folder / name for home in homes if home for folder in folders]
    return next((path for path in (*paths, *more) if path.is_file() and os.access(path, os.X_OK)), None)


def run_traced(
    session: Resources,
    command: Sequence[str],
    scratch: Path,
    readable: Iterable[Path],
    *,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
) -> tuple[int | None, str]:
    """Returns the exit code of a command, None where it ran out of time, and what it printed."""
    settings = session.workers.settings
    spec = SandboxSpec(
        scratch=scratch,
        level=settings.level,
        readable=(PACKAGES, *readable),
        hidden=settings.hidden,
        environment=dict(environment or {}),
        gpu=settings.device is Device.CUDA,
        limits=SandboxLimits(memory_mib=memory_limit_mib(settings.memory_mib)),
        filter_syscalls=False,
    )
    log = scratch.with_name(f"{scratch.name}.log")
    log.unlink(missing_ok=True)
    with spawn(list(command), spec, cwd=scratch, log=log) as process:
        try:
            code: int | None = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = None
    with log.open("rb") as stream:
        return code, stream.read(_OUTPUT_BYTES).decode(errors="replace")


@contextmanager
def written_call(session: Resources, candidate: Candidate, library: Path | None) -> Iterator[tuple[Path, Path]]:
    """Writes the snapshot, its library, fresh inputs and weights as files that the sandbox may read. Yields their
    folder and a folder to write into, which exist in the block."""
    with tempfile.TemporaryDirectory(prefix="traced-", dir=session.directory) as temporary:
        files, scratch = Path(temporary) / "files", Path(temporary) / "scratch"
        files.mkdir()
        scratch.mkdir()
        write_call(session, candidate, library, files)
        yield files, scratch


def write_call(session: Resources, candidate: Candidate, library: Path | None, files: Path) -> None:
    reference = session.reference
    inside = write_candidate(candidate, library, files)
    reference.draw_weights(session.secrets.seed())
    inputs_spec = reference.draw_inputs(session.secrets.seed())
    state = reference.spec.state
    weights = _dump(reference.weights, tuple(state.values()), files, "weight") if state else []
    call = {
        "device": session.options.device.value,
        "library": None if inside is None else str(inside),
        "model": str(files / MODEL_FILE),
        "init": reference.spec.init,
        "inputs_spec": inputs_spec,
        "inputs": _dump(reference.inputs, reference.spec.inputs, files, "input"),
        "state": dict(zip(state, weights, strict=True)),
    }
    (files / "call.json").write_text(json.dumps(call))


def _dump(places: Places, metas: Sequence[TensorMeta], files: Path, stem: str) -> list[dict[str, Any]]:
    found = []
    for index, (slot, meta) in enumerate(zip(places.layout.slots, metas, strict=True)):
        name = f"{stem}{index}.bin"
        places.arena.raw(slot.offset, extent_bytes(meta)).cpu().numpy().tofile(files / name)
        found.append({"file": name, "shape": list(meta.shape), "strides": list(meta.strides), "dtype": meta.dtype})
    return found
