"""The rules for symbols that a candidate's object files import, and for libraries that the linked one needs."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from cuda_agent.core.enums import Device
from cuda_agent.core.errors import DeviceError
from cuda_agent.core.records import Violation
from cuda_agent.judge.guard.python_names import words

_ALLOCATE = words(
    """
    empty empty_memory_format empty_names empty_like empty_strided new_empty new_empty_strided zeros zeros_like
    new_zeros
    """
)
_VIEW = words(
    """
    view view_as view_dtype reshape reshape_as _reshape_alias as_strided transpose_int t permute expand
    expand_as squeeze squeeze_dim squeeze_dims unsqueeze narrow select_int slice_Tensor flatten_using_ints
    unflatten_int contiguous alias detach movedim_int numpy_T mT unbind_int split_Tensor split_sizes
    split_with_sizes chunk size_int stride_int sym_size_int sym_stride_int sym_numel item _local_scalar_dense
    is_same_size
    """
)
_CPU_VENDOR = words(
    """
    mm mm_out addmm addmm_ addmm_out bmm bmm_out baddbmm baddbmm_ baddbmm_out convolution convolution_out
    """
)

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
_PROCESS = words(
    """
    system popen fork vfork clone clone3 execl execle execlp execv execve execvp execvpe posix_spawn
    posix_spawnp ptrace kill tgkill syscall prctl process_vm_readv process_vm_writev pthread_create thrd_create
    exit _exit _Exit quick_exit signal sigaction setitimer std::thread::_M_start_thread
    """
)
_LOADER = words(
    """
    dlopen dlmopen dlsym dlvsym dladdr dl_iterate_phdr mprotect mmap mmap64 mremap munmap
    """
)
_OUTSIDE = words(
    """
    open open64 openat creat fopen fopen64 freopen fdopen opendir readlink socket connect bind shm_open
    memfd_create getenv secure_getenv setenv putenv unsetenv environ __environ
    """
)
_CLOCK = words(
    """
    clock time gettimeofday clock_gettime timespec_get nanosleep usleep sleep omp_get_wtime
    """
)
_CUDA_FORBIDDEN = re.compile(
    r"^(?:cudaStreamCreate|cudaLaunchHostFunc|cudaStreamAddCallback|cudaIpc|cudaDeviceReset|cudaProfiler|cudaDeviceSetLimit"
    r"|cudaEventElapsedTime|cudaSetDeviceFlags|cupti|nvml|cuStreamCreate|cuLaunchHostFunc|cuMem\w*Export|cuIpc)"
)
#: pybind11 itself walks frames for its error messages, so those can't be told apart here.
_PYTHON_FORBIDDEN = re.compile(r"^_?Py(?:Run_|Import_|Eval_Eval|Eval_GetFrame|Code_|GC_|Sys_)")
_CXX_FORBIDDEN = re.compile(
    r"^std::(?:thread|async|__basic_future|basic_[io]?fstream|basic_filebuf|filesystem|chrono::)"
)


def check_symbols(objects: Mapping[str, Path], device: Device) -> tuple[Violation, ...]:
    """Returns a violation for each forbidden symbol that the candidate's own object files import. `objects` maps source
    paths to object files.

    The linked library would also show what the toolchain itself brings (a libstdc++ linked statically opens files).
    Raises DeviceError when `nm` is missing.
    """
    return tuple(violation for source, path in objects.items() for violation in _object_symbols(source, path, device))


def _object_symbols(source: str, path: Path, device: Device) -> list[Violation]:
    listed = _binutils("nm", "--undefined-only", "-C", str(path))
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
    listed = _binutils("readelf", "--dynamic", "--wide", str(library))
    if listed is None:
        return (Violation(rule="unreadable_object", layer=LAYER, detail=f"readelf can't read {library.name}"),)
    needed = re.findall(r"\(NEEDED\)[^\[]*\[([^\]]*)\]", listed)
    return tuple(
        Violation(rule="needed_library", layer=LAYER, detail=f"the library needs {name}")
        for name in needed
        if not _LIBRARIES.match(name)
    )


def _binutils(*command: str) -> str | None:
    """Returns the output of a tool, None where it fails. Raises DeviceError when the tool is missing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError:
        raise DeviceError(f"{command[0]} is missing", "apt install binutils") from None
    return done.stdout if done.returncode == 0 else None


def forbidden_symbol(symbol: str, device: Device) -> str:
    """Returns the name of the rule that importing this (demangled) symbol breaks, or ""."""
    operator = _OPERATOR.match(symbol)
    if operator:
        allowed = _ALLOCATE | _VIEW | (_CPU_VENDOR if device is Device.CPU else set())
        return "" if operator.group(1) in allowed else "torch_compute"
    name = symbol.split("@", 1)[0]
    if _TORCH_FORBIDDEN.match(name):
        return "torch_compute"
    if name in _PROCESS:
        return "process"
    if name in _LOADER:
        return "loader"
    if name in _OUTSIDE:
        return "outside_world"
    if name in _CLOCK:
        return "clock"
    if _CUDA_FORBIDDEN.match(name):
        return "cuda_side_channel"
    if _PYTHON_FORBIDDEN.match(name):
        return "python_from_c"
    if _CXX_FORBIDDEN.match(name):
        return "outside_world"
    return ""
