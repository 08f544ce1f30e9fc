"""The library skills' CUDA sources compile with the build's own flags. Skips without nvcc or the libraries' headers."""

import os
from pathlib import Path

import pytest
from library_kernels import compile_kernels, source_of

from cuda_agent.core.enums import Device
from cuda_agent.core.errors import DeviceError
from cuda_agent.judge.build.toolchain import find_toolchain

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("skill", "header"),
    [
        ("gemm", "cublasLt.h"),
        ("convolution", "cudnn.h"),
        ("attention/float32", "cuda_runtime.h"),
        ("attention/half", "cuda_runtime.h"),
        ("attention/library", "cudnn.h"),
        ("selection", "cuda_runtime.h"),
        ("selection/sort", "cuda_runtime.h"),
        ("scatter", "cuda_runtime.h"),
        ("scatter/scatter_slices", "cuda_runtime.h"),
    ],
)
def test_source_compiles(skill, header, tmp_path, monkeypatch):
    try:
        tools = find_toolchain(Device.CUDA, "9.0")
    except DeviceError as error:
        pytest.skip(str(error))
    more = [Path(item) for item in os.environ.get("CPATH", "").split(":") if item]
    if not any((folder / header).exists() for folder in (*tools.includes, *more)):
        pytest.skip(f"{header} is missing")
    done = compile_kernels(source_of(*skill.split("/")), tmp_path / "kernels.o")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "warning" not in done.stderr.replace("-Wdeprecated", "")
