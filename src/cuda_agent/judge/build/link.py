"""Links objects into one shared library.

The linker would read all symbols of torch's libraries, hundreds of thousands, which takes most of a second. So it gets
stand-ins: libraries of the same names with only the symbols that these objects need and torch's libraries define. The
result needs the same symbols of the same libraries. Of pybind11's functions it gets those that these objects need.
"""

import json
import re
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

from cuda_agent.core.errors import DeviceError
from cuda_agent.core.hashing import digest_text
from cuda_agent.judge.build.compiler import Compiler, shorten
from cuda_agent.judge.guard.symbols import binutils

LIBRARY_NAME = "cuda_extension.so"
_FORMAT = "1"
_INDEX = "symbols.json"
_UNDEFINED = re.compile(r"undefined reference to [`'](.+?)'")
#: name -> (section, type) of a stand-in's symbol, by readelf's word for its type.
_SECTIONS = {"FUNC": (".text", "@function"), "OBJECT": (".data", "@object"), "TLS": (".tdata", "@tls_object")}
_ASSEMBLES = re.compile(r"[\w.$]+")

#: name of a library -> its symbols -> readelf's word for their type.
Index = dict[str, dict[str, str]]


def link(
    compiler: Compiler, objects: Sequence[Path], functions: Path | None, say: Callable[[str], None]
) -> tuple[Path | None, str]:
    """Returns (library, "") or (None, the error). `functions`: the object file of pybind11's functions, if some objects
    need it. Raises StoreError (disk full), SandboxError, DeviceError (no binutils)."""
    command = compiler.tools.link_command()
    given = [*objects, functions] if functions is not None else objects
    key = digest_text(compiler.tools.fingerprint, *command, *(path.parent.name for path in given))
    found = compiler.cache.find("libraries", key, LIBRARY_NAME)
    if found is not None:
        return found, ""
    say("linking")
    with compiler.cache.scratch() as scratch:
        names = []
        for index, path in enumerate(objects):
            names.append(f"{index}.o")
            shutil.copyfile(path, scratch / names[-1])
        made = scratch / LIBRARY_NAME
        wanted = _symbols("--undefined-only", *(scratch / name for name in names))
        needed = _needed(compiler, functions, wanted) if functions is not None else None
        if needed is not None:
            names.append(Path(shutil.copy(needed, scratch)).name)
            wanted |= _symbols("--undefined-only", needed)
        torch = [Path(shutil.copy(path, scratch)) for path in _stubs(compiler, wanted)]
        command = compiler.tools.link_command(torch_libraries=torch)
        # Objects before libraries, for --as-needed.
        outcome = compiler.run([command[0], *names, *command[1:], "-o", str(made)], scratch, scratch, made)
        if outcome.output is None:
            return None, f"link error\n{shorten(_without_python(outcome.log))}"
        missing = _missing_symbols(outcome.log)
        if missing:
            hint = 'Define them, with extern "C" and the same parameters where they are declared and defined.'
            return None, f"link error: undefined {', '.join(missing)}\n{hint}"
        return compiler.cache.keep("libraries", key, LIBRARY_NAME, made), ""


def _symbols(which: str, *objects: Path) -> set[str]:
    return set((binutils("nm", which, "--format=just-symbols", *map(str, objects)) or "").split())


def _needed(compiler: Compiler, functions: Path, wanted: set[str]) -> Path | None:
    """Links an object with the wanted functions and what they need. Returns None where none is wanted."""
    symbols = sorted(wanted & _symbols("--defined-only", functions))
    if not symbols:
        return None
    key = digest_text(_FORMAT, compiler.tools.fingerprint, functions.parent.name, *symbols)

    def make(scratch: Path) -> None:
        given = str(shutil.copy(functions, scratch / "all.o"))
        roots = [f"-Wl,-u,{symbol}" for symbol in symbols]
        refusal = "pybind11's functions can't be linked"
        _link_own(compiler, scratch / functions.name, refusal, "-r", "-Wl,--gc-sections", *roots, given)

    return compiler.cache.made("libraries", key, functions.name, make)


def _stubs(compiler: Compiler, wanted: set[str]) -> list[Path]:
    """Makes stand-ins for the libraries of torch that define a wanted symbol."""
    index = _index(compiler)
    stubs: dict[str, dict[str, str]] = {}
    for name, symbols in index.items():
        mine = {symbol: symbols[symbol] for symbol in sorted(wanted & symbols.keys())}
        wanted -= mine.keys()
        if mine:
            stubs[name] = mine
    if not stubs:
        return []
    with ThreadPoolExecutor(len(stubs), thread_name_prefix="stub") as pool:
        return list(pool.map(lambda item: _stub(compiler, *item), stubs.items()))


def _stub(compiler: Compiler, name: str, symbols: dict[str, str]) -> Path:
    key = digest_text(_FORMAT, compiler.tools.fingerprint, name, *(f"{kind} {s}" for s, kind in symbols.items()))
    lines = []
    for symbol, kind in symbols.items():
        section, type_ = _SECTIONS.get(kind, _SECTIONS["OBJECT"])
        flags = ',"awT",@progbits' if section == ".tdata" else ""
        lines += [f".section {section}{flags}", f".globl {symbol}", f".type {symbol}, {type_}", f"{symbol}: .quad 0"]

    def make(scratch: Path) -> None:
        (scratch / "stub.s").write_text("\n".join(lines) + "\n")
        refusal = f"No stand-in for {name} can be linked"
        _link_own(compiler, scratch / name, refusal, "-shared", f"-Wl,-soname,{name}", "stub.s")

    return compiler.cache.made("libraries", key, name, make)


def _link_own(compiler: Compiler, made: Path, refusal: str, *options: str) -> None:
    """Links a part without any system library. Raises DeviceError with the cause `refusal`."""
    command = [compiler.tools.cxx, "-nostdlib", *options, "-o", str(made)]
    outcome = compiler.run(command, made.parent, made.parent, made)
    if outcome.output is None:
        raise DeviceError(refusal, "Check g++ and ld", detail=outcome.log)


def _index(compiler: Compiler) -> Index:
    """Returns the defined symbols of torch's libraries in link order. They are read once for a torch."""
    files = compiler.tools.torch_libraries
    key = digest_text(
        _FORMAT, compiler.tools.torch_version, *(f"{p} {p.stat().st_size} {p.stat().st_mtime_ns}" for p in files)
    )

    def make(scratch: Path) -> None:
        (scratch / _INDEX).write_text(json.dumps({path.name: _defined(path) for path in files}))

    return _read_index(compiler.cache.made("libraries", key, _INDEX, make))


@lru_cache(maxsize=2)
def _read_index(path: Path) -> Index:
    index: Index = json.loads(path.read_text())
    return index


def _defined(library: Path) -> dict[str, str]:
    """Returns a library's dynamic symbols that others may use, with their types."""
    found = {}
    for line in (binutils("readelf", "--dyn-syms", "--wide", str(library)) or "").splitlines():
        words = line.split()
        # Num: Value Size Type Bind Vis Ndx Name, or Name@Version
        name = words[7].partition("@")[0] if len(words) == 8 else ""
        if _ASSEMBLES.fullmatch(name) and words[4] != "LOCAL" and words[6] != "UND":
            found[name] = words[3]
    return found


def _without_python(log: str) -> str:
    """Removes the linker's hundreds of warnings about Python's own symbols."""
    lines = log.splitlines()
    return "\n".join(line for line in lines if not re.search(r"undefined reference to [`']_?Py", line)).strip()


def _missing_symbols(log: str) -> list[str]:
    """Returns undefined symbols. The interpreter that loads the library defines Python's."""
    found = dict.fromkeys(_UNDEFINED.findall(log))  # foreign text: the linker's
    return [name for name in found if not re.match(r"_?Py", name)]
