"""Test tools: the CUDA library launchers compiled and called through ctypes; whole proposals built and loaded."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.records import Candidate
from cuda_agent.judge.build.extension import build_extension
from cuda_agent.judge.build.toolchain import find_toolchain
from cuda_agent.playbook import skills
from cuda_agent.playbook.plan import Options
from cuda_agent.playbook.proposal import propose
from cuda_agent.workers.inside.candidate import import_extension
from cuda_agent.workers.inside.graph.capture import capture

SKILLS = Path(skills.__file__).parent
LIBRARIES = {"gemm": ("cublas", "cublasLt"), "convolution": ("cudnn",), "library": ("cudnn",)}


def graph_of(module: torch.nn.Module, inputs: list[torch.Tensor]):
    return capture(module.eval(), inputs, SimpleNamespace(Model=type(module)))


def compile_kernels(source: Path, output: Path, arch: str = "9.0") -> subprocess.CompletedProcess[str]:
    """A `.cu` as an object file, with a build's flags. Raises DeviceError without nvcc."""
    # ctypes must see the launchers.
    command = [part.replace("-fvisibility=hidden,", "") for part in find_toolchain(Device.CUDA, arch).nvcc_command()]
    # Headers that skills share lie beside each other only in a workspace.
    command += ["-I", str(SKILLS / "shared"), "-c", str(source), "-o", str(output)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def library(directory: Path, folder: str, kernel: str) -> ctypes.CDLL:
    """The launchers of a skill's kernel as a shared library."""
    return compiled(source_of(folder, kernel), directory, LIBRARIES.get(kernel, ()))


def source_of(skill: str, kernel: str = "") -> Path:
    return SKILLS / skill / f"{kernel or skill}.cu"


def compiled(source: Path, directory: Path, libraries: Sequence[str]) -> ctypes.CDLL:
    """A `.cu` with the CUDA runtime and these libraries, loaded."""
    name = source.stem
    done = compile_kernels(source, directory / f"{name}.o")
    assert done.returncode == 0, done.stderr[-3000:]
    tools = find_toolchain(Device.CUDA, "9.0")
    wanted = [path for path in tools.libraries if path.name.split(".")[0][3:] in (*libraries, "cudart")]
    result = directory / f"lib{name}.so"
    command = ["g++", "-shared", str(directory / f"{name}.o"), *map(str, wanted), "-o", str(result)]
    command += [f"-Wl,-rpath,{path.parent}" for path in wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return ctypes.CDLL(str(result))


def pointers(*tensors: torch.Tensor | None) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(tensor.data_ptr() if tensor is not None else None) for tensor in tensors]


def results_of_proposal(
    case: str, dtype: str, device: Device, directory: Path, *, channels_last: bool = False, setting: int = 0
) -> list[torch.Tensor]:
    """The results of a case's proposal, built, loaded and run; on a GPU in a process of its own, whose faults would be
    everybody's. `setting`: that of all products that have it."""
    if device is Device.CPU:
        return _results(case, dtype, device, channels_last)
    command = [sys.executable, __file__, case, dtype, device.value, str(directory / "results.pt"), str(setting)]
    command += ["channels_last"] if channels_last else []
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return torch.load(directory / "results.pt")


def _results(case: str, dtype: str, device: Device, channels_last: bool, setting: int = 0) -> list[torch.Tensor]:
    from library_cases import CASES, HALF_CASES, LAST_CASES

    module, inputs = {**CASES, **LAST_CASES, **HALF_CASES}[case](getattr(torch, dtype), device.value)
    precision = Precision.TF32 if device is Device.CUDA else Precision.FP32
    proposal = propose(graph_of(module, inputs), device, precision, Options(channels_last=channels_last))
    assert {"gemm", "convolution", "grouped"} & set(proposal.skills)
    built = build_extension(Candidate(files=dict(proposal.files)), JudgeOptions(device=device, precision=precision))
    assert built.library is not None, built.report.log
    import_extension(built.library, f"{case}_{dtype}")
    namespace: dict[str, Any] = {"__name__": "model_new"}
    exec(compile(proposal.files["model_new.py"], "model_new.py", "exec"), namespace)
    products = {name for name, count in proposal.tunables.items() if name.startswith("gemm_") and setting < count}
    namespace["CONFIG"].update(dict.fromkeys(products, setting))
    model = namespace["ModelNew"]().to(device.value)
    model.load_state_dict(module.state_dict())
    with torch.no_grad():
        found = model.eval()(*inputs)
    return [item.cpu() for item in (found if isinstance(found, tuple) else [found])]


if __name__ == "__main__":
    named, kind, place, output, number, *words = sys.argv[1:]
    torch.save(_results(named, kind, Device(place), "channels_last" in words, int(number)), output)
