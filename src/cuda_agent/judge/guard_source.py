"""C++ and CUDA sources, after comments and strings are blanked: names and headers that a candidate may not use."""

from __future__ import annotations

import re
from collections.abc import Callable

from cuda_agent.core.enums import Device
from cuda_agent.core.records import Violation

_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
      |(?P<raw>R"(?P<mark>[^\s()\\]{0,16})\(.*?\)(?P=mark)")
      |(?P<string>"(?:\\.|[^"\\\n])*")
      |(?P<char>(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+')""",
    re.DOTALL | re.VERBOSE,
)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include(?:_next)?[ \t]*(?P<what>[<"][^>"\n]*[>"]|[^\n]*)', re.MULTILINE)
_HEADERS_FORBIDDEN = re.compile(
    r"""^(?: (?:dlfcn|unistd|pthread|signal|spawn|threads|link|elf|time)\.h$
      | (?:sys|linux|arpa|netinet|asm)/
      | (?:csignal|thread|future|fstream|filesystem|chrono|ctime|semaphore)$
      | torch/(?:script|nn|jit|optim|serialize|library|csrc/(?:jit|inductor|dynamo|profiler|autograd/engine))
      | ATen/(?:native|core/dispatch|cpu|Parallel|functorch|cuda/(?:CUDABlas|CUDAGraph|CUDAEvent))
      | (?:thrust/|cub/|cutlass|cute/|cufft|cusparse|cusolver|curand|npp|nvjpeg|nvrtc|cutensor|nccl|cupti|nvml)
      | (?:dnnl|oneapi|mkl|cblas|openblas|Eigen|xsimd) )""",
    re.VERBOSE,
)
_QUALIFIED = re.compile(r"(?<![\w:])(?P<space>at|torch|c10)\s*::\s*(?P<name>\w+(?:\s*::\s*\w+)*)")
#: types, constants and allocation; everything else in at:: and torch:: may compute.
_TORCH_ALLOWED = re.compile(
    r"""^(?: Tensor(?:Options|List)? | OptionalTensorRef | ScalarType | Scalar | Dtype | Device(?:Type|Index)?
      | Layout | MemoryFormat | IntArrayRef | ArrayRef | dtype | device | layout | requires_grad | optional | nullopt
      | string_view | Half | BFloat16 | Float8\w* | elementSize | toString | isFloatingType | isIntegralType
      | CppTypeToScalarType
      | k[A-Z]\w* | empty | empty_like | empty_strided | zeros | zeros_like | NoGradGuard | InferenceMode
      | AutoDispatchBelowAutograd | opmath_type | acc_type | ceil_div | headeronly )(?:::.*)?$""",
    re.VERBOSE,
)
_AT_CUDA_ALLOWED = re.compile(
    r"""^cuda::(?: getCurrentCUDAStream | getDefaultCUDAStream | CUDAStream | CUDAGuard | OptionalCUDAGuard
      | current_device | getCurrentDeviceProperties | getDeviceProperties | getCurrentCUDABlasHandle
      | getCurrentCUDABlasLtHandle | warp_size | device_count )$""",
    re.VERBOSE,
)
_C10_FORBIDDEN = re.compile(
    r"^(?:Dispatcher|OperatorHandle|impl::OperatorEntry|cuda::(?:getStreamFromPool|setCurrentCUDAStream|CUDA\w*StreamGuard))"
)
_CPU_VENDOR = re.compile(r"^(?:mm|addmm|bmm|baddbmm|convolution)(?:_out)?$")
_USING = re.compile(r"\busing\s+namespace\s+(?:::\s*)?(?:at|torch|c10)\b[\w:\s]*;")

_NAMES = {
    "process": r"system|popen|v?fork|clone3|exec[lv]p?e?|posix_spawnp?|ptrace|tgkill|syscall|prctl|pthread_\w+"
    r"|thrd_create|setitimer|process_vm_(?:readv|writev)|std\s*::\s*(?:thread|jthread|async)",
    "loader": r"dlm?open|dlv?sym|dladdr|dl_iterate_phdr|mprotect|mmap(?:64)?|mremap",
    "outside_world": r"fopen(?:64)?|freopen|fdopen|opendir|openat|shm_open|memfd_create|(?:secure_)?getenv|putenv"
    r"|setenv|environ|std\s*::\s*(?:[io]?fstream|filesystem)",
    "clock": r"gettimeofday|clock_gettime|timespec_get|omp_get_wtime|nanosleep|usleep|std\s*::\s*chrono",
    "cuda_side_channel": r"cudaStreamCreate\w*|cudaLaunchHostFunc|cudaStreamAddCallback|cudaIpc\w+|cudaDeviceReset"
    r"|cuIpc\w+|cudaEventElapsedTime|getStreamFromPool|setCurrentCUDAStream|CUDAStreamGuard|CUDAMultiStreamGuard",
    "python_from_c": r"PyImport_\w+|PyRun_\w+|PyEval_\w+|PyObject_Call\w*|PyGC_\w+|PyFrame_\w+|PySys_\w+"
    r"|THPVariable_\w+|py(?:bind11)?\s*::\s*(?:eval\w*|exec|globals)|module_?\s*::\s*import",
    "torch_compute": r"_ops|globalContext|Dispatcher|redispatch|findSchema\w*",
}
#: a member of something (`x.time`) isn't the function of that name.
_NAME_RULES = {rule: re.compile(rf"(?<![\w.])(?<!->)(?:{names})\b") for rule, names in _NAMES.items()}
_ATTRIBUTE = re.compile(r"(?:\.|->)\s*attr\s*\(")
_ASSEMBLER = re.compile(r"\b(?:asm|__asm__|__asm)\b")
_SYSTEM_CALL = re.compile(r"\b(?:syscall|sysenter|svc)\b|int\s+\$?0x80")

_Add = Callable[[str, int, str], None]


def check_source(text: str, path: str, device: Device) -> list[Violation]:
    """Broken rules in one C++ or CUDA file, with their lines."""
    spliced = _splice(text)
    includes, code = _blank(spliced, strings=False), _blank(spliced, strings=True)
    found: list[Violation] = []

    def add(rule: str, position: int, what: str) -> None:
        line = spliced.count("\n", 0, position) + 1
        found.append(Violation(rule=rule, layer="source", detail=f"{path}:{line}: {' '.join(what.split())[:120]}"))

    for match in _INCLUDE.finditer(includes):
        _check_include(match, add)
    code = _INCLUDE.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), code)
    for match in _QUALIFIED.finditer(code):
        name = re.sub(r"\s+", "", match["name"])
        if not _is_allowed(match["space"], name, device):
            add("torch_compute", match.start(), f"{match['space']}::{name} is not among the allowed names")
    for match in _USING.finditer(code):
        add("hidden_names", match.start(), f"{match.group()} hides where names come from; write at:: or torch::")
    for rule, pattern in _NAME_RULES.items():
        for match in pattern.finditer(code):
            add(rule, match.start(), match.group())
    for match in _ATTRIBUTE.finditer(code):
        add("python_from_c", match.start(), "attribute of a Python object")
    _check_assembler(code, spliced, path, add)
    return found


def _check_include(match: re.Match[str], add: _Add) -> None:
    what = match["what"].strip()
    if what[:1] not in ("<", '"'):
        add("computed_include", match.start(), f"#include {what}")
        return
    name = what[1:-1]
    if name.startswith("/") or _HEADERS_FORBIDDEN.search(name):
        add("forbidden_header", match.start(), f"#include {what}")


def _check_assembler(code: str, text: str, path: str, add: _Add) -> None:
    """In `.cu` files inline PTX is a tool of the trade; on the host assembler can only hide what is done."""
    for match in _ASSEMBLER.finditer(code):
        if not path.endswith((".cu", ".cuh")):
            add("inline_assembler", match.start(), "inline assembler in host code")
        elif _SYSTEM_CALL.search(text[match.start() : match.start() + 2000].split(");")[0]):
            add("process", match.start(), "a system call from inline assembler")


def _is_allowed(space: str, name: str, device: Device) -> bool:
    if space == "c10":
        return _C10_FORBIDDEN.match(name) is None
    if device is Device.CPU and _CPU_VENDOR.match(name):
        return True
    return (_AT_CUDA_ALLOWED if name.startswith("cuda") else _TORCH_ALLOWED).match(name) is not None


def _splice(text: str) -> str:
    """Lines that a backslash continues become one, so that no name can be split; later lines keep their numbers."""
    joined, missing = [], 0
    for line in text.replace("\r\n", "\n").split("\n"):
        if line.endswith("\\"):
            joined.append(line[:-1])
            missing += 1
        else:
            joined.append(line + "\n" * (1 + missing))
            missing = 0
    return "".join(joined)


def _blank(text: str, *, strings: bool) -> str:
    """Comments (and strings) replaced by spaces; lines stay where they are."""

    def empty(match: re.Match[str]) -> str:
        if match["comment"] is None and not strings:
            return match.group()
        return re.sub(r"[^\n]", " ", match.group())

    return _TOKEN.sub(empty, text)
