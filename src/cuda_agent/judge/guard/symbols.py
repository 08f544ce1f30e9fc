"""The rules for symbols that a candidate's object files import, and for libraries that the linked one needs."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from cuda_agent.core.enums import Device
from cuda_agent.core.errors import DeviceError
from cuda_agent.core.records import Violation
from cuda_agent.core.words import word_lists

LAYER = "symbols"
_LIBRARIES = re.compile(
    r"^(?:lib(?:c10|torch|torch_cpu|torch_python|c10_cuda|torch_cuda|torch_global_deps|gomp|stdc\+\+|gcc_s|m|c|rt|dl"
    r"|pthread|cudart|cublas|cublasLt|cudnn|cudnn_\w+|python3(?:\.\d+)?)|ld-linux[\w-]*)(?:-\w+)?\.so(?:\.[\d.]+)?$"
)
_OPERATOR = re.compile(r"^at::_ops::(\w+)::")
#: a demangled name may follow a return type or `vtable for`.
_TORCH_FORBIDDEN = re.compile(
    r"""^(?:.*\s)?(?: at::(?:native|cpu|meta|redispatch|functorch|internal::invoke_parallel|globalContext|Context::)
      | at::cuda::(?:blas|solver|sparse) | c10::(?:Dispatcher|OperatorHandle)
      | c10::impl::(?:OperatorEntry|TorchDispatchModeTLS|PythonDispatcherTLS) | at::detail::empty
      | c10::cuda::(?:getStreamFromPool|setCurrentCUDAStream)
      | torch::(?:jit|nn|inductor|aot_inductor|dynamo|Library|CppFunction|profiler|autograd::(?!AutogradMeta)) )""",
    re.VERBOSE,
)
#: further names, by the rule that importing them breaks. pybind11 itself walks frames for its error messages, so those
#: can't be told apart here.
_FORBIDDEN = (
    ("cuda_side_channel", re.compile(
        r"^(?:cudaStreamCreate|cudaLaunchHostFunc|cudaStreamAddCallback|cudaIpc|cudaDeviceReset|cudaProfiler"
        r"|cudaDeviceSetLimit|cudaEventElapsedTime|cudaSetDeviceFlags|cupti|nvml|cuStreamCreate|cuLaunchHostFunc"
        r"|cuMem\w*Export|cuIpc)"
    )),
    ("python_from_c", re.compile(r"^_?Py(?:Run_|Import_|Eval_Eval|Eval_GetFrame|Code_|GC_|Sys_)")),
    ("outside_world", re.compile(
        r"^std::(?:thread|async|__basic_future|basic_[io]?fstream|basic_filebuf|filesystem|chrono::)"
    )),
)  # fmt: skip


def check_symbols(objects: Mapping[str, Path], device: Device) -> tuple[Violation, ...]:
    """Returns a violation for each forbidden symbol that the candidate's own object files import. `objects` maps source
    paths to object files.

    The linked library would also show what the toolchain itself brings (a libstdc++ linked statically opens files).
    Raises DeviceError when `nm` is missing.
    """
    return tuple(violation for source, path in objects.items() for violation in _object_symbols(source, path, device))


def _object_symbols(source: str, path: Path, device: Device) -> list[Violation]:
    listed = binutils("nm", "--undefined-only", "-C", str(path))
    if listed is None:
        return [Violation(rule="unreadable_object", layer=LAYER, detail=f"{source}: nm can't read its object file")]
    found = []
    for line in listed.splitlines():
        _, _, symbol = line.strip().partition(" ")
        rule = forbidden_symbol(symbol.strip(), device)
        # nvcc's host side of a device function calls exit, so in its objects the name says nothing.
        if rule and not (symbol.strip() == "exit" and source.endswith(".cu")):
            detail = f"{source} uses {symbol.split('(')[0][:160]}"
            found.append(Violation(rule=rule, layer=LAYER, detail=detail))
    return found


def check_library(library: Path) -> tuple[Violation, ...]:
    """Returns a violation for each needed library that a candidate may not bring in. Raises DeviceError."""
    listed = binutils("readelf", "--dynamic", "--wide", str(library))
    if listed is None:
        return (Violation(rule="unreadable_object", layer=LAYER, detail=f"readelf can't read {library.name}"),)
    needed = re.findall(r"\(NEEDED\)[^\[]*\[([^\]]*)\]", listed)
    return tuple(
        Violation(rule="needed_library", layer=LAYER, detail=f"the library needs {name}")
        for name in needed
        if not _LIBRARIES.match(name)
    )


def binutils(*command: str) -> str | None:
    """Returns the output of a tool, None where it fails. Raises DeviceError when the tool is missing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=120, check=False)
    except FileNotFoundError:
        raise DeviceError(f"{command[0]} is missing", "apt install binutils") from None
    return done.stdout if done.returncode == 0 else None


def forbidden_symbol(symbol: str, device: Device) -> str:
    """Returns the name of the rule that importing this (demangled) symbol breaks, or ""."""
    lists = word_lists(__file__)
    operator = _OPERATOR.match(symbol)
    if operator:
        allowed = lists["allocate"] | lists["view"] | (lists["cpu vendor"] if device is Device.CPU else set())
        return "" if operator.group(1) in allowed else "torch_compute"
    name = symbol.split("@", 1)[0]
    if _TORCH_FORBIDDEN.match(name):
        return "torch_compute"
    for rule in ("process", "loader", "outside_world", "clock"):
        if name in lists[rule]:
            return rule
    return next((rule for rule, pattern in _FORBIDDEN if pattern.match(name)), "")
