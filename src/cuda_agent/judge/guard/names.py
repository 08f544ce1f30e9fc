"""The rule for names that a candidate's C++ and CUDA may not use. It reads preprocessed text."""

import re
from collections.abc import Callable, Iterator

from cuda_agent.core.enums import Device
from cuda_agent.judge.guard.lexer import TOKEN, without_literals

_QUALIFIED = re.compile(r"(?<!\w)(?P<space>at|torch|c10)\s*::\s*(?P<name>\w+(?:\s*::\s*\w+)*)")
#: types, constants and allocation; everything else in at:: and torch:: may compute.
_TORCH_ALLOWED = re.compile(
    r"""^(?: Tensor(?:Options|List)? | OptionalTensorRef | ScalarType | Scalar | Dtype | Device(?:Type|Index)?
      | Layout | MemoryFormat | IntArrayRef | ArrayRef | dtype | device | layout | requires_grad | optional | nullopt
      | string_view | Half | BFloat16 | Float8\w* | elementSize | toString | isFloatingType | isIntegralType
      | CppTypeToScalarType
      | k[A-Z]\w* | empty | empty_like | empty_strided | zeros | zeros_like | NoGradGuard | InferenceMode
      | AutoDispatchBelowAutograd | opmath_type | acc_type | ceil_div | headeronly | should_include_kernel_dtype
      )(?:::.*)?$""",
    re.VERBOSE,
)
_AT_CUDA_ALLOWED = re.compile(
    r"""^cuda::(?: getCurrentCUDAStream | getDefaultCUDAStream | CUDAStream | CUDAGuard | OptionalCUDAGuard
      | current_device | getCurrentDeviceProperties | getDeviceProperties | getCurrentCUDABlasHandle
      | getCurrentCUDABlasLtHandle | warp_size | device_count | blas::_cublasGetErrorEnum )$""",
    re.VERBOSE,
)
_C10_FORBIDDEN = re.compile(
    r"^(?:Dispatcher|Operator\w+|KernelFunction|impl::(?!ScalarType|cow)|cuda::(?:getStreamFromPool|setCurrentCUDAStream"
    r"|CUDA\w*StreamGuard))"
)
_CPU_VENDOR = re.compile(r"^(?:mm|addmm|bmm|baddbmm|convolution)(?:_out)?$")
_HIDING = re.compile(r"\b(?:using\s+)?namespace\s+(?:\w+\s*=\s*)?(?:::\s*)?(?:at|torch|c10)\b")

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
    r"|PyObject_[GSD]e[tl]Attr\w*|PyModule_\w+|PyThreadState_\w+|PyInterpreterState_\w+|THPVariable_\w+"
    r"|\w+\s*::\s*(?:eval|eval_file|exec|globals|getattr|setattr|delattr)(?=\s*[(<])|module_?\s*::\s*import",
    "torch_compute": r"_ops|globalContext|Dispatcher|redispatch|findSchema\w*",
    "hidden_dispatch": r"TorchDispatchModeTLS|PythonDispatcherTLS|(?:Ex|In)cludeDispatchKeyGuard|LocalDispatchKeySet"
    r"|ThreadLocalStateGuard|tls_(?:set|local)_\w+|_force_tls_\w+|ThreadLocalPythonObjects|enableRecordFunction",
}
#: a member access such as `x.time` isn't a call of the function with that name.
_NAME_RULES = {rule: re.compile(rf"(?<![\w.])(?<!->)(?:{names})(?!\w)") for rule, names in _NAMES.items()}
_ATTRIBUTE = re.compile(r"(?:\.|->)\s*attr\s*\(")
#: `_Pragma` can write it too.
_PRECOMPILED = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+GCC[ \t]+pch_preprocess\b", re.MULTILINE)
_ASSEMBLER = re.compile(r"\b(?:asm|__asm__|__asm)\b[^(;]*\(")
#: system calls, and data directives, which can encode any instruction. PTX has neither.
_NOT_PTX = re.compile(
    r"\b(?:syscall|sysenter|svc)\b|\bint\s+\$?0x80"
    r"|(?:\A|[\n;{:])\s*\.(?:[248]?byte|long|quad|short|value|h?word|inst|octa|ascii|asciz|string|incbin|macro|rept|set|equ"
    r"|(?:push|pop)?section|text|data)\b"
)

Add = Callable[[str, int, str], None]


def check_names(text: str, *, cuda: bool, device: Device, add: Add) -> None:
    """Calls `add` with (rule, offset, what) for each broken rule in preprocessed text. `cuda` says that it is a `.cu`
    file."""
    code = without_literals(text)
    for match in _QUALIFIED.finditer(code):
        name = re.sub(r"\s+", "", match["name"])
        if not _is_allowed(match["space"], name, device):
            add("torch_compute", match.start(), f"{match['space']}::{name} is not among the allowed names")
    for match in _HIDING.finditer(code):
        add("hidden_names", match.start(), f"{match.group()} hides where names come from; write at:: or torch::")
    for match in _PRECOMPILED.finditer(code):
        add("hidden_text", match.start(), "a precompiled header of its own")
    for rule, pattern in _NAME_RULES.items():
        for match in pattern.finditer(code):
            hint = ": threads of its own may outlive a call; use OpenMP" if "thread" in match.group() else ""
            add(rule, match.start(), f"{match.group()}{hint}")
    for match in _ATTRIBUTE.finditer(code):
        add("python_from_c", match.start(), "attribute of a Python object")
    for begin, end in _assembler(code):
        # Kernels in `.cu` files use inline PTX. On the host, assembler serves only to hide what is done.
        if not cuda:
            add("inline_assembler", begin, "inline assembler in host code")
        elif _NOT_PTX.search(_literals(text, begin, end)):
            add("inline_assembler", begin, "inline assembler that isn't PTX")


def _is_allowed(space: str, name: str, device: Device) -> bool:
    if space == "c10":
        return _C10_FORBIDDEN.match(name) is None
    if device is Device.CPU and _CPU_VENDOR.match(name):
        return True
    return (_AT_CUDA_ALLOWED if name.startswith("cuda") else _TORCH_ALLOWED).match(name) is not None


def _assembler(code: str) -> Iterator[tuple[int, int]]:
    """Yields where each inline assembler begins and ends: with the parenthesis that closes it."""
    end = 0
    for match in _ASSEMBLER.finditer(code):
        # What lies inside of another one is read with it.
        if match.start() >= end:
            depth, end = 1, match.end()
            while end < len(code) and depth:
                depth += {"(": 1, ")": -1}.get(code[end], 0)
                end += 1
            yield match.start(), end


def _literals(text: str, begin: int, end: int) -> str:
    """Joins the literals of a part of a text."""
    return "".join(_value(token) for token in TOKEN.finditer(text, begin, end) if token["literal"] or token["raw"])


def _value(token: re.Match[str]) -> str:
    if token["raw"]:
        return token["raw"].partition("(")[2].rpartition(")")[0]
    return re.sub(r"\\(x[0-9a-fA-F]+|[0-7]{1,3}|.)", _escape, token["literal"][1:-1], flags=re.DOTALL)


def _escape(match: re.Match[str]) -> str:
    what = match[1]
    if what[0] == "x":
        return chr(int(what[1:], 16) % 0x110000)
    if what[0] in "01234567":
        return chr(int(what, 8))
    return {"n": "\n", "t": "\t"}.get(what, what)
