"""The rules for symbols that a candidate's object files import, and for libraries that the linked one needs."""

import re
import subprocess
from collections.abc import Container, Iterator, Mapping
from fnmatch import translate
from functools import lru_cache
from pathlib import Path

from cuda_agent.core.assets import tables, word_lists
from cuda_agent.core.enums import Device
from cuda_agent.core.errors import DeviceError
from cuda_agent.core.records import Violation
from cuda_agent.judge.guard.declarations import MOST
from cuda_agent.judge.guard.mangled import qualified

LAYER = "symbols"
_LIBRARIES = re.compile(
    r"^(?:lib(?:c10|torch|torch_cpu|torch_python|c10_cuda|torch_cuda|torch_global_deps|gomp|stdc\+\+|gcc_s|m|c|rt|dl"
    r"|pthread|cudart|cublas|cublasLt|cudnn|cudnn_\w+|python3(?:\.\d+)?)|ld-linux[\w-]*)(?:-\w+)?\.so(?:\.[\d.]+)?$"
)
#: what torch's namespaces and the interpreter are called, for the name of the rule.
_TORCH = re.compile(r"(?:at|c10|torch|caffe2)(?:::|$)|THP")
_PYTHON = re.compile(r"_?Py[A-Z_]")
#: vectors of a mathematical function, and how older C libraries call functions without error handling.
_MATH = re.compile(r"(?:_ZGV\w+?_)?(?:__)?(?P<name>\w+?)(?P<type>[fl])?(?:_finite)?")
_OPERATORS = "at::_ops::"
_LISTS = ("c library", "compiler", "c++ runtime", "openmp", "python", "pybind11", "torch")
#: of an object file that is read.
_MOST_BYTES = 256 << 20


def check_symbols(objects: Mapping[str, Path], device: Device) -> tuple[Violation, ...]:
    """Returns a violation for each symbol that the candidate's own object files import and that isn't listed. `objects`
    maps source paths to object files, which may use each other's symbols.

    The linked library would also show what the toolchain itself brings (a libstdc++ linked statically opens files).
    Raises DeviceError when `nm` is missing.
    """
    own = {name for path in objects.values() for name in _names(path, "--defined-only", "--extern-only") or ()}
    return tuple(violation for item in objects.items() for violation in _object_symbols(*item, own, device))


def _object_symbols(source: str, path: Path, own: Container[str], device: Device) -> list[Violation]:
    names = _names(path, "--undefined-only")
    if names is None:
        return [Violation(rule="unreadable_object", layer=LAYER, detail=f"{source}: nm can't read its object file")]
    found: list[Violation] = []
    for name in names:
        # nvcc's host side of a device function calls exit, so in its objects the name says nothing.
        if name in own or (name == "exit" and source.endswith(".cu")):
            continue
        symbol = qualified(name.partition("@")[0])
        rule = broken_rule(symbol, device)
        if rule and len(found) < MOST:
            detail = f"{source} imports {symbol[:160]}, which isn't among the symbols that a kernel may import"
            instead = tables(__file__)["instead"]
            use = next((f": use {instead[symbol[:end]]}" for end in _ends(symbol) if symbol[:end] in instead), "")
            found.append(Violation(rule=rule, layer=LAYER, detail=f"{detail}{use}"))
    return found


def _names(path: Path, *which: str) -> list[str] | None:
    """Returns the symbols of an object file as they are, since printing a mangled name may take for ever."""
    if path.stat().st_size > _MOST_BYTES:
        return None
    listed = binutils("nm", *which, "--format=just-symbols", str(path))
    return None if listed is None else listed.split()


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
    except subprocess.TimeoutExpired:
        return None
    return done.stdout if done.returncode == 0 else None


def broken_rule(symbol: str, device: Device) -> str:
    """Returns the name of the rule that importing this symbol (`qualified`) breaks, or ""."""
    if _is_listed(symbol, device):
        return ""
    if _TORCH.match(symbol):
        return "torch_compute"
    return "python_from_c" if _PYTHON.match(symbol) else "unlisted_symbol"


def _is_listed(symbol: str, device: Device) -> bool:
    lists = word_lists(__file__)
    if symbol.startswith(_OPERATORS):
        allowed = lists["allocate"] | lists["view"] | (lists["cpu vendor"] if device is Device.CPU else set())
        return symbol[len(_OPERATORS) :].partition("::")[0] in allowed
    if _is_mathematical(symbol):
        return True
    return any(_allowed(device).fullmatch(symbol[:end]) for end in _ends(symbol))


def _is_mathematical(symbol: str) -> bool:
    match = _MATH.fullmatch(symbol)
    return match is not None and not {match["name"], f"{match['name']}{match['type']}"}.isdisjoint(
        word_lists(__file__)["math"]
    )


def _ends(symbol: str) -> Iterator[int]:
    """Yields where a name ends: the whole of it, and what it is a member or an instance of."""
    yield len(symbol)
    yield from (match.start() for match in re.finditer(r"::|<", symbol))


@lru_cache(maxsize=2)
def _allowed(device: Device) -> re.Pattern[str]:
    lists = word_lists(__file__)
    more = ("cuda runtime", "cuda libraries") if device is Device.CUDA else ()
    words = sorted(word for name in (*_LISTS, *more) for word in lists[name])
    return re.compile("|".join(translate(word) for word in words))
