"""The shared parts of all bindings, made once for a compiler, a torch and a device: torch's headers precompiled, and
pybind11's functions compiled.

A binding uses most of pybind11, whose functions are all inline; compiling them takes 1.9 s of the 5.4 s of every
binding. GCC's `#pragma interface` declares that the functions of a file's classes are compiled elsewhere, `#pragma
implementation` that they are compiled here. `#line` gives pybind11's files the pragma.
"""

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from cuda_agent.core.errors import DeviceError
from cuda_agent.core.hashing import digest_text
from cuda_agent.judge.build.compiler import Compiler, shorten

_HEADER = "cuda_agent_torch.h"
_FUNCTIONS = "pybind11.o"
_FORMAT = "2"
#: pybind11's headers that torch's headers include.
_PYBIND11 = "#include <pybind11/pybind11.h>\n#include <pybind11/stl.h>\n"
_FILES = re.compile(r'^# \d+ "([^"]+)"', re.MULTILINE)


@dataclass(frozen=True)
class BindingHeaders:
    """`header` is the file that g++ includes first, with its precompiled form beside it. `functions` is the object file
    of pybind11's functions, each in its own section."""

    header: Path
    functions: Path


def binding_headers(compiler: Compiler) -> BindingHeaders:
    """Makes them once, which takes half a minute. Raises DeviceError where torch's own headers don't compile here."""
    source = (Path(__file__).with_name("headers") / _HEADER).read_text()
    command = compiler.tools.cxx_command(binding=True)
    key = digest_text(_FORMAT, compiler.tools.fingerprint, *command, source)
    with compiler.cache.lock(key):
        found = compiler.cache.find("headers", key, f"{_HEADER}.gch")
        if found is None:
            found = _make(compiler, command, source, key)
    # A cache may share another one's headers through a link, which no sandbox follows.
    kept = found.resolve()
    return BindingHeaders(kept.with_suffix(""), kept.with_name(_FUNCTIONS))


def _make(compiler: Compiler, command: list[str], source: str, key: str) -> Path:
    with compiler.cache.scratch() as scratch, compiler.cache.scratch() as beside:
        expanded = _run(compiler, scratch, "pybind11.ii", _PYBIND11, [*command, "-E"])
        own = compiler.tools.torch_dir / "include" / "pybind11"
        named = dict.fromkeys(_FILES.findall(expanded.read_text(errors="replace")))
        files = [path for path in named if Path(path).is_relative_to(own)]
        names = dict.fromkeys(Path(path).name for path in files)
        interface = "".join(f'#line 1 "{path}"\n#pragma interface\n' for path in files)
        implementation = "".join(f'#pragma implementation "{name}"\n' for name in names)
        apart = ["-ffunction-sections", "-fdata-sections", "-c"]
        text = f'{implementation}{interface}#line 1 "pybind11.cpp"\n{_PYBIND11}'
        with ThreadPoolExecutor(1, thread_name_prefix="pybind11") as side:
            functions = side.submit(_run, compiler, beside, _FUNCTIONS, text, [*command, *apart])
            text = f'{interface}#line 1 "{_HEADER}"\n{source}'
            made = _run(compiler, scratch, f"{_HEADER}.gch", text, [*command, "-x", "c++-header"])
            return compiler.cache.keep("headers", key, made.name, made, [scratch / _HEADER, functions.result()])


def _run(compiler: Compiler, scratch: Path, name: str, text: str, command: list[str]) -> Path:
    """Compiles a text, which is kept beside the output."""
    made = scratch / name
    source = made.with_suffix("" if name.endswith(".gch") else ".cpp")
    source.write_text(text)
    outcome = compiler.run([*command, source.name, "-o", str(made)], scratch, scratch, made)
    if outcome.output is None:
        raise DeviceError(
            f"torch's headers don't compile: {outcome.fault}",
            "Check the compiler (g++ 11 or newer) and the torch installation",
            detail=shorten(outcome.log),
        )
    return made
