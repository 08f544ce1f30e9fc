"""Finds the compilers, headers and libraries of a build, without importing torch."""

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from cuda_agent.core.assets import words
from cuda_agent.core.enums import Device
from cuda_agent.core.errors import DeviceError
from cuda_agent.core.hashing import digest_text
from cuda_agent.core.stack import find_nvcc, first_line, output_lines

#: the one header of c10/cuda that a CPU build of torch leaves out. With it bindings for CUDA compile there.
_CPU_TORCH_HEADERS = Path(__file__).with_name("headers") / "cpu_torch"
_SYSTEM_LIBRARIES = (Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib/aarch64-linux-gnu"), Path("/usr/lib64"))
_CUDA_LIBRARIES = ("cudart", "cublas", "cublasLt", "cudnn")


@dataclass(frozen=True)
class Toolchain:
    """All facts that decide the content of an object file, besides its sources."""

    device: Device
    cxx: str
    cxx_version: str
    nvcc: str | None
    nvcc_version: str | None
    arch: str | None
    torch_version: str
    torch_dir: Path
    cuda_torch: bool
    includes: tuple[Path, ...]
    #: where g++ itself looks for headers.
    headers: tuple[Path, ...]
    libraries: tuple[Path, ...]
    #: the shared C++ runtime, where it is found.
    cxx_runtime: Path | None
    cpu_flags: str

    def cxx_command(self, *, binding: bool) -> list[str]:
        """Returns the g++ command for a C++ source, without input and output. `binding`: the source includes torch's
        headers."""
        device = ["-DCUDA_AGENT_DEVICE_CUDA"] if self.device is Device.CUDA else []
        options = words(__file__, "cxx_binding" if binding else "cxx_kernel")
        return [self.cxx, *words(__file__, "cxx"), *device, *options, *self._include_options()]

    def nvcc_command(self, *, lambdas: bool = True) -> list[str]:
        """Returns the nvcc command for a `.cu`, without input and output. `lambdas`: with device lambdas. Raises
        DeviceError where nvcc is missing."""
        if self.nvcc is None:
            raise DeviceError("CUDA's compiler nvcc is missing", "Install the CUDA toolkit or set CUDA_HOME")
        options = words(__file__, "nvcc") + (words(__file__, "nvcc_lambdas") if lambdas else [])
        return [self.nvcc, *options, f"-ccbin={self.cxx}", *gencode(self.arch), *self._include_options()]

    def link_command(self, torch_libraries: Sequence[Path] | None = None) -> list[str]:
        """Returns the g++ command that links a shared library, without objects and output. `torch_libraries` replaces
        torch's own libraries."""
        torch = self.torch_libraries if torch_libraries is None else torch_libraries
        paths = [self.torch_dir / "lib", *dict.fromkeys(path.parent for path in self.libraries)]
        return [
            self.cxx, *words(__file__, "link"),
            *(f"-Wl,-rpath,{path}" for path in paths), *(f"-Wl,-rpath-link,{path}" for path in paths),
            *map(str, torch), *map(str, self.libraries), *([str(self.cxx_runtime)] if self.cxx_runtime else []),
        ]  # fmt: skip

    @property
    def torch_libraries(self) -> tuple[Path, ...]:
        """torch's libraries that a binding may need, in link order."""
        names = ["c10", "torch_cpu", "torch", "torch_python"] + (["c10_cuda", "torch_cuda"] if self.cuda_torch else [])
        paths = (self.torch_dir / "lib" / f"lib{name}.so" for name in names)
        return tuple(path for path in paths if path.exists())

    @property
    def fingerprint(self) -> str:
        """The digest of what the command lines don't show."""
        return digest_text(
            self.cxx_version, self.nvcc_version or "", self.torch_version, self.cpu_flags, platform.machine()
        )

    @property
    def readable(self) -> tuple[Path, ...]:
        """The folders that the compilers read, wherever they are."""
        roots = {self.torch_dir, *self.includes, *self.headers, *(path.parent for path in self.libraries)}
        for program in (self.cxx, self.nvcc):
            if program:
                roots |= {Path(program).parent, Path(program).resolve().parents[1]}
        home = Path.home().resolve()
        private = {home, *home.parents}
        return tuple(sorted(path for path in roots if path.exists() and path.resolve() not in private))

    def _include_options(self) -> list[str]:
        return [part for path in self.includes for part in ("-isystem", str(path))]


def gencode(arch: str | None) -> list[str]:
    """Returns nvcc's target for a compute capability: sm_90a for `9.0`, since Hopper's own instructions need the
    architecture-specific target. Raises DeviceError for another form."""
    if arch is None:
        raise DeviceError("The GPU's architecture is unknown", "Pass it, such as 9.0, or run where the GPU is")
    if not re.fullmatch(r"\d+\.\d[a-f]?", arch):
        raise DeviceError(f"{arch!r} is not a compute capability", "Write it as 9.0")
    number = arch.replace(".", "")
    if number in ("90", "100", "103", "120"):
        number += "a"
    return [f"-gencode=arch=compute_{number},code=sm_{number}"]


def _cpu_flags() -> str:
    """Returns the processor's features, on which `-march=native` depends."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    wanted = ("flags", "Features", "model name", "CPU part")
    lines = {line for line in text.split("\n\n", 1)[0].splitlines() if line.startswith(wanted)}
    return digest_text(*sorted(lines))


def _torch_dir() -> Path:
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise DeviceError("torch is not installed", "pip install torch")
    return Path(next(iter(spec.submodule_search_locations)))


def _cuda_folders(nvcc: str | None, packages: Path) -> tuple[list[Path], list[Path]]:
    """Returns (include, library) folders. The toolkit's come first, so that its headers fit its compiler; then the
    wheels'."""
    wheels = sorted((packages / "nvidia").glob("*"))
    includes, libraries = [], [wheel / "lib" for wheel in wheels]
    roots = []
    if nvcc is not None:
        found = re.search(r"^#\$ TOP=(.*)$", _dryrun(nvcc), re.MULTILINE)
        roots.append(Path(found.group(1)).resolve() if found else Path(nvcc).resolve().parents[1])
    roots += [Path(os.environ["CUDA_HOME"])] if os.environ.get("CUDA_HOME") else []
    for root in roots:
        includes += [root / "include", root / "targets/x86_64-linux/include"]
        libraries += [root / "lib64", root / "lib", root / "targets/x86_64-linux/lib"]
    includes += [wheel / "include" for wheel in wheels]
    libraries += _SYSTEM_LIBRARIES
    return [path for path in includes if path.is_dir()], [path for path in libraries if path.is_dir()]


def _dryrun(nvcc: str) -> str:
    """Returns nvcc's plan. nvcc may be a script that starts the real one elsewhere, and the real one tells its
    folder."""
    command = [nvcc, "--dryrun", "-x", "cu", "-c", "/dev/null", "-o", "/dev/null"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stderr
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _headers(cxx: str) -> list[Path]:
    """Returns the folders in which g++ looks for headers. It may be a script that starts another one."""
    command = [cxx, "-E", "-v", "-x", "c++", "/dev/null"]
    # Nothing of this process's environment, which the compilers of a build don't have either.
    alone = {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}
    try:
        text = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, env=alone).stderr
    except (OSError, subprocess.TimeoutExpired):
        return []
    listed = re.search(r"^#include <\.\.\.>.*\n((?: .*\n)*)", text, re.MULTILINE)  # foreign text: g++
    return [Path(line.strip()) for line in listed[1].splitlines()] if listed else []


def _find_library(name: str, folders: list[Path]) -> Path | None:
    found = (sorted(folder.glob(f"lib{name}.so*"), key=lambda path: len(path.name)) for folder in folders)
    return next((paths[0] for paths in found if paths), None)


def _cxx_runtime(cxx: str) -> Path | None:
    """Returns libstdc++.so.6, which is linked by name. A compiler that links its own statically makes a library with
    two runtimes, which crashes at the first formatted error message."""
    name = "libstdc++.so.6"
    said = Path(first_line(cxx, f"-print-file-name={name}") or "")
    if said.is_absolute() and said.exists():
        return said
    folders = [Path(sys.prefix) / "lib", *_SYSTEM_LIBRARIES]
    return next((folder / name for folder in folders if (folder / name).exists()), None)


@lru_cache(maxsize=8)
def find_toolchain(device: Device, arch: str | None = None) -> Toolchain:
    """Finds the toolchain. Raises DeviceError, with the command that helps, where a compiler or torch is missing."""
    cxx = shutil.which(os.environ.get("CXX") or "g++")
    if cxx is None:
        raise DeviceError("The C++ compiler g++ is missing", "apt install g++")
    torch_dir = _torch_dir()
    nvcc = find_nvcc() if device is Device.CUDA else None
    if device is Device.CUDA and nvcc is None:
        raise DeviceError("CUDA's compiler nvcc is missing", "Install the CUDA toolkit or set CUDA_HOME")
    python = Path(sysconfig.get_paths()["include"])
    if not (python / "Python.h").exists():
        raise DeviceError("Python.h is missing", f"apt install python{platform.python_version()[:4]}-dev")
    includes = [torch_dir / "include", torch_dir / "include/torch/csrc/api/include", python]
    libraries: list[Path] = []
    cuda_torch = (torch_dir / "lib/libtorch_cuda.so").exists()
    if device is Device.CUDA and not cuda_torch:
        includes.append(_CPU_TORCH_HEADERS)
    if device is Device.CUDA:
        cuda_includes, folders = _cuda_folders(nvcc, torch_dir.parent)
        includes = cuda_includes + includes
        libraries = [path for name in _CUDA_LIBRARIES if (path := _find_library(name, folders)) is not None]
    return Toolchain(
        device=device,
        cxx=cxx,
        cxx_version="\n".join(output_lines(cxx, "--version")),
        nvcc=nvcc,
        nvcc_version="\n".join(output_lines(nvcc, "--version")) if nvcc else None,
        arch=arch,
        torch_version=metadata.version("torch"),
        torch_dir=torch_dir,
        cuda_torch=cuda_torch,
        includes=tuple(dict.fromkeys(includes)),
        headers=tuple(_headers(cxx)),
        libraries=tuple(libraries),
        cxx_runtime=_cxx_runtime(cxx),
        cpu_flags=_cpu_flags(),
    )
