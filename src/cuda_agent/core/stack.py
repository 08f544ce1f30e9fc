"""Reads the hardware and software stack of a measurement, without importing torch."""

import contextlib
import os
import platform
import shutil
import subprocess
from functools import lru_cache
from importlib import metadata

from pydantic import Field

from cuda_agent.core.record import Record

_GPU_FIELDS = "name,uuid,driver_version,compute_cap,power.limit,clocks.max.sm,clocks.max.mem,memory.total"


class Gpu(Record):
    """One GPU as the driver describes it."""

    name: str
    """The driver's name."""
    uuid: str
    """Unique identifier."""
    compute_capability: str
    """Such as `9.0`."""
    power_limit_w: float | None = None
    """Power limit."""
    max_sm_clock_mhz: float | None = None
    """Highest clock of the multiprocessors."""
    max_memory_clock_mhz: float | None = None
    """Highest clock of the memory."""
    memory_mib: int | None = None
    """Memory."""


class Stack(Record):
    """The hardware and software that times depend on, with versions."""

    gpus: tuple[Gpu, ...] = ()
    """All GPUs."""
    driver: str | None = None
    """NVIDIA's driver."""
    cuda_compiler: str | None = None
    """nvcc."""
    cxx_compiler: str | None = None
    """g++."""
    torch: str | None = None
    """PyTorch."""
    cudnn: str | None = None
    """cuDNN."""
    triton: str | None = None
    """Triton."""
    python: str
    """Python."""
    cpu: str
    """The processor's name."""
    cpu_cores: int
    """Cores of this process."""
    cuda_agent: str
    """This package."""
    settings: dict[str, str] = Field(default_factory=dict)
    """Settings that times depend on."""


def output_lines(*command: str) -> list[str]:
    """Returns the non-empty lines of a command's standard output; none when it can't run or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [] if done.returncode else [line.strip() for line in done.stdout.splitlines() if line.strip()]


def first_line(*command: str) -> str | None:
    """Returns the first non-empty line of a command's standard output, or None when it can't run or fails."""
    return next(iter(output_lines(*command)), None)


def find_nvcc() -> str | None:
    """Returns the path of CUDA's compiler: `$CUDA_HOME/bin/nvcc`, then PATH, then the default place."""
    home = os.environ.get("CUDA_HOME")
    candidates = [f"{home}/bin/nvcc"] if home else []
    candidates += [shutil.which("nvcc") or "", "/usr/local/cuda/bin/nvcc"]
    return next((path for path in candidates if path and os.access(path, os.X_OK)), None)


def available_memory() -> int | None:
    """Returns the bytes of memory that the kernel can give to programs now, or None where it doesn't say."""
    with contextlib.suppress(OSError), open("/proc/meminfo") as stream:
        for line in stream:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def package_version(package: str) -> str | None:
    """Returns the version of an installed package, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def query_gpus() -> tuple[tuple[Gpu, ...], str | None]:
    """Returns the GPUs and the driver's version from `nvidia-smi`; they are empty where there is none."""
    gpus, driver = [], None
    for line in output_lines("nvidia-smi", f"--query-gpu={_GPU_FIELDS}", "--format=csv,noheader,nounits"):
        parts = [part.strip() for part in line.split(",")]
        if len(parts) != 8:
            continue
        name, uuid, driver, capability, power, sm_clock, memory_clock, memory = parts
        gpus.append(
            Gpu(
                name=name,
                uuid=uuid,
                compute_capability=capability,
                power_limit_w=_number(power),
                max_sm_clock_mhz=_number(sm_clock),
                max_memory_clock_mhz=_number(memory_clock),
                memory_mib=int(_number(memory) or 0) or None,
            )
        )
    return tuple(gpus), driver


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as stream:
            for line in stream:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _nvcc_version() -> str | None:
    lines = output_lines(find_nvcc() or "nvcc", "--version")
    return next((line.split(",")[-1].strip() for line in lines if "release" in line), None)


@lru_cache(maxsize=1)
def read_stack() -> Stack:
    """Returns the stack, which is read once per process."""
    gpus, driver = query_gpus()
    return Stack(
        gpus=gpus,
        driver=driver,
        cuda_compiler=_nvcc_version(),
        cxx_compiler=first_line(os.environ.get("CXX") or "g++", "--version"),
        torch=package_version("torch"),
        cudnn=package_version("nvidia-cudnn-cu13"),
        triton=package_version("triton"),
        python=platform.python_version(),
        cpu=_cpu_name(),
        cpu_cores=len(os.sched_getaffinity(0)),
        cuda_agent=package_version("cuda-agent") or "unknown",
    )
