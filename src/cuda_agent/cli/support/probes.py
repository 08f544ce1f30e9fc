"""What this machine can do, found out by doing it: compile, import, start a sandbox."""

import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuda_agent.agent.device import find_cxx
from cuda_agent.core.enums import SandboxLevel
from cuda_agent.core.errors import CudaAgentError
from cuda_agent.core.files import cache_dir
from cuda_agent.core.stack import available_memory, find_nvcc, first_line, output_lines, query_gpus
from cuda_agent.workspace.sandbox import SandboxSpec, sandbox_facts, spawn
from cuda_agent.workspace.temporary import temporary_folder

_GIB = 1 << 30
_TIMEOUT_S = 180
_MEMORY_GIB, _DISK_GIB = 6, 3
#: what the probes compile and run.
_TEXTS = Path(__file__).with_name("doctor")


@dataclass(frozen=True)
class Probe:
    """One finding. `state`: ok, limited (works, with less), missing. `remedy` is a command or a sentence."""

    name: str
    state: str
    fact: str
    remedy: str = ""

    @property
    def ok(self) -> bool:
        return self.state != "missing"


def probe_python() -> Probe:
    """This process runs, so the version is one that the package accepts; the standard library may still lack parts."""
    named = f"{platform.python_version()} ({sys.executable})"
    missing = [name for name in ("venv", "ssl", "lzma") if importlib.util.find_spec(name) is None]
    if missing:
        return Probe("python", "limited", f"{named}, without {', '.join(missing)}", "apt-get install python3-full")
    return Probe("python", "ok", named)


def probe_torch() -> tuple[Probe, dict[str, Any]]:
    """Imports torch in a process of its own and, where there is a GPU, computes on it."""
    done = _run(_torch_command())
    try:
        facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        last = (done.stderr.strip().splitlines() or ["import failed"])[-1]
        return Probe("torch", "missing", last, f"{sys.executable} -m pip install 'torch>=2.11,<2.15'"), {}
    built = f"CUDA {facts['cuda']}" if facts["cuda"] else "CPU only"
    return Probe("torch", "ok", f"{facts['version']} ({built})"), facts


def probe_cxx() -> Probe:
    """Compiles a file with OpenMP and Python's headers."""
    compiler = find_cxx()
    if compiler is None:
        return Probe("g++", "missing", "not found", "apt-get install g++")
    include = sysconfig.get_paths()["include"]
    done = _compile([compiler, "-std=c++20", "-fopenmp", "-fPIC", f"-I{include}"], "probe.cpp")
    if done.returncode == 0:
        return Probe("g++", "ok", f"{compiler} {first_line(compiler, '-dumpfullversion') or ''}".strip())
    if "Python.h" in done.stderr:  # foreign text: the compiler's
        return Probe("g++", "missing", "Python's headers are missing", "apt-get install python3-dev")
    return Probe("g++", "missing", _first(done.stderr), "apt-get install --reinstall g++ libc6-dev")


def probe_nvcc() -> Probe:
    """Compiles a kernel."""
    nvcc = find_nvcc()
    if nvcc is None:
        return Probe("nvcc", "missing", "not found", "install the CUDA toolkit, or set CUDA_HOME to where it is")
    done = _compile([nvcc, "-O1"], "probe.cu")
    if done.returncode == 0:
        return Probe("nvcc", "ok", f"{nvcc} {_release(nvcc)}".strip())
    return Probe("nvcc", "missing", f"can't compile: {_first(done.stderr)}", "install a matching g++ and CUDA toolkit")


def probe_gpu(torch: dict[str, Any]) -> tuple[Probe, Probe]:
    """(GPU, driver). The GPU counts when torch computed on it."""
    gpus, driver = query_gpus()
    if not gpus:
        gpu = Probe("GPU", "missing", "none visible", "run on a machine with an NVIDIA GPU (cpu jobs need none)")
        remedy = "install the NVIDIA driver (cpu jobs need none)"
        return gpu, Probe("driver", "missing", "nvidia-smi doesn't answer", remedy)
    named = Probe("driver", "ok", str(driver))
    fact = ", ".join(f"{gpu.name} (sm_{gpu.compute_capability.replace('.', '')})" for gpu in gpus)
    if torch.get("gpu"):
        return Probe("GPU", "ok", fact), named
    if not torch.get("cuda"):
        remedy = f"{sys.executable} -m pip install --force-reinstall torch (a build with CUDA)"
        return Probe("GPU", "missing", f"{fact}, but torch is built without CUDA", remedy), named
    why = torch.get("why") or "torch can't use it"
    return Probe("GPU", "missing", f"{fact}, but {why}", "bring the driver and torch's CUDA version together"), named


def probe_sandbox(torch: dict[str, Any]) -> Probe:
    """Starts bubblewrap once; else says what Landlock gives. Where torch reaches a GPU, it must from inside too."""
    facts = sandbox_facts()
    install = "apt-get install bubblewrap" if facts.bwrap is None else ""
    why = _gpu_inside(facts.level) if torch.get("gpu") else None
    if why is not None:
        remedy = install or "run outside the container, or with --device cpu"
        return Probe("sandbox", "missing", f"{facts.level.value}, but torch reaches no GPU inside it: {why}", remedy)
    if facts.level is SandboxLevel.FULL:
        return Probe("sandbox", "ok", f"full ({facts.bwrap}; Landlock ABI {facts.landlock_abi})")
    landlock = f"Landlock ABI {facts.landlock_abi}" if facts.landlock_abi > 0 else "no Landlock"
    remedy = install or "allow user namespaces (or run outside the container)"
    return Probe("sandbox", "limited", f"reduced: {facts.reason}; {landlock}", remedy)


def _gpu_inside(level: SandboxLevel) -> str | None:
    """Why torch can't compute on the GPU in such a sandbox; None where it can."""
    with temporary_folder("doctor") as folder:
        scratch, log = folder / "scratch", folder / "log"
        scratch.mkdir()
        try:
            spec = SandboxSpec(scratch=scratch, level=level, gpu=True)
            with spawn(_torch_command(), spec, cwd=scratch, log=log) as process:
                process.wait(_TIMEOUT_S)
            facts = json.loads((log.read_text().splitlines() or [""])[-1])
        except CudaAgentError as error:
            return error.cause
        except subprocess.TimeoutExpired:
            return f"no answer within {_TIMEOUT_S} s"
        except ValueError:
            return _first(log.read_text())
    return None if facts["gpu"] else facts["why"] or "none visible"


def probe_memory() -> Probe:
    """Memory that is free now, by the kernel and by the container's limit."""
    free = _memory_available() / _GIB
    state = "ok" if free >= _MEMORY_GIB else "limited"
    remedy = "" if state == "ok" else f"free some: a run may need {_MEMORY_GIB} GiB beside the tensors"
    return Probe("memory", state, f"{free:.1f} GiB available", remedy)


def probe_disk() -> Probe:
    """Space where the cache and the runs lie."""
    try:
        cache = cache_dir()
    except CudaAgentError as error:
        return Probe("disk", "missing", error.cause, error.remedy)
    free = {str(path): shutil.disk_usage(path).free / _GIB for path in (cache, Path.cwd())}
    fact = ", ".join(f"{path}: {size:.1f} GiB free" for path, size in free.items())
    low = min(free.values()) < _DISK_GIB
    remedy = f"free some, or set CUDA_AGENT_CACHE to a disk with {_DISK_GIB} GiB"
    return Probe("disk", "limited" if low else "ok", fact, remedy if low else "")


def probe_all() -> tuple[list[Probe], dict[str, bool]]:
    """Every finding, and which devices' jobs can run here."""
    torch, facts = probe_torch()
    probes = [probe_python(), torch, probe_cxx(), probe_nvcc(), *probe_gpu(facts), probe_sandbox(facts)]
    probes += [probe_memory(), probe_disk()]
    by_name = {probe.name: probe.ok for probe in probes}
    cpu = all(by_name[name] for name in ("python", "torch", "g++", "disk"))
    return probes, {"cpu": cpu, "cuda": cpu and all(by_name[name] for name in ("nvcc", "GPU", "driver", "sandbox"))}


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))


def _torch_command() -> list[str]:
    return [sys.executable, "-c", (_TEXTS / "torch.txt").read_text()]


def _compile(command: list[str], source: str) -> subprocess.CompletedProcess[str]:
    with temporary_folder("doctor") as folder:
        return _run([*command, "-c", str(_TEXTS / source), "-o", f"{folder}/probe.o"])


def _release(nvcc: str) -> str:
    lines = output_lines(nvcc, "--version")
    return next((line.split("release", 1)[1].split(",")[0].strip() for line in lines if "release" in line), "")


def _first(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[0] if lines else "no message")


def _memory_available() -> int:
    """Bytes: the kernel's estimate, bounded by what the control group leaves."""
    free = available_memory() or os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return free
    return min(free, max(0, limit - used))
