"""Imports the compiler in a worker ahead of time, and counts what it compiled by TorchDynamo's own counters, which are
read after the compilation at no cost to it."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import torch

from cuda_agent.core import bytecode
from cuda_agent.core.enums import Device
from cuda_agent.core.records import CompileReport
from cuda_agent.workers.inside.imports import importing

_MOST_REASONS, _LONGEST = 8, 400
_CUDA_NOT_INITIALIZED = 3


def import_compiler(device: Device) -> None:
    """Imports the compiler, which takes seconds of a core and starts no device."""
    with importing():
        for name in bytecode.modules("compiler", *(["gpu_compiler"] if device is Device.CUDA else [])):
            with contextlib.suppress(ImportError):
                importlib.import_module(name)


def forget_compilations() -> float:
    """Sets the counters to zero. Returns the present time, for `count_compilations`."""
    import torch._dynamo

    # An earlier form's compiled code is guarded by that form's own code, so only numbers are dropped.
    torch._dynamo.utils.counters.clear()
    return time.monotonic()


def count_compilations(begin: float) -> CompileReport:
    """Returns what was compiled since `begin`."""
    from torch._dynamo.utils import counters

    broken = {**counters["graph_break"], **counters["unimplemented"]}
    frames, inductor = counters["frames"], counters["inductor"]
    reasons = sorted(broken, key=lambda reason: -broken[reason])[:_MOST_REASONS]
    return CompileReport(
        graphs=int(counters["stats"]["unique_graphs"]),
        breaks=int(sum(broken.values())),
        reasons=tuple(map(_line, reasons)),
        fallbacks=max(0, int(frames["total"] - frames["ok"])),
        graphs_refused=int(inductor["cudagraph_skips"]),
        compile_s=time.monotonic() - begin,
    )


def _line(reason: str) -> str:
    """Returns the message before its hints."""
    return " ".join(str(reason).partition("\n  Hint")[0].split())[:_LONGEST]  # foreign text: torch's


def warm_compiler(device: Device) -> None:
    """Imports the compiler and uses it once, in a process that forks: nothing of it may start CUDA or leave a file."""
    # A fork has none of its parent's threads, for which OpenMP would wait for ever.
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        places = {"TORCHINDUCTOR_CACHE_DIR": folder, "TRITON_CACHE_DIR": folder}
        with mock.patch.dict(os.environ, places):
            _warm(device)


def _warm(device: Device) -> None:
    if device is Device.CPU:
        import_compiler(Device.CPU)
        _compile("inductor")
        return
    for step in (partial(import_compiler, Device.CUDA), partial(_compile, "aot_eager"), _load_triton_driver):
        # No step should start CUDA. A step that does is left to the forks.
        if _is_harmless(step):
            step()


def _compile(backend: str) -> None:
    """Exports and compiles a module of ours. If torch believed in a GPU it would save the state of its generator, which
    starts CUDA."""
    importlib.import_module("torch.export")
    module: Any = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()).eval()
    inputs = (torch.ones(2, 4),)
    hidden = mock.patch.object(torch.cuda, "is_available", return_value=False)
    with hidden, torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = torch.export.export(module, inputs, strict=False)
        exported.run_decompositions(torch.export.default_decompositions())
        torch.compile(module, backend=backend)(*inputs)
        importlib.import_module("torch._dynamo").reset()


def _load_triton_driver() -> None:
    """Lets Triton compile a small C library, as at its first use."""
    backend = importlib.import_module("triton.backends.nvidia.driver")
    importlib.import_module("triton.runtime.driver").driver.set_active(backend.CudaDriver())


def _is_harmless(step: Callable[[], None]) -> bool:
    """Whether a step works without starting CUDA. It is tried in a fork, since a started driver can't be stopped."""
    pid = os.fork()
    if pid == 0:
        code = 2
        try:
            step()
            code = 1 if cuda_has_started() else 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


def cuda_has_started() -> bool:
    """Whether this process has initialised the driver, which no fork could use then."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int()
    return bool(torch.cuda.is_initialized()) or driver.cuDeviceGetCount(ctypes.byref(count)) != _CUDA_NOT_INITIALIZED
