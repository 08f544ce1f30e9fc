"""Compiles a candidate once more for the compiler's report, and disassembles it."""

import importlib.util
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device
from cuda_agent.core.inspection import KernelCode
from cuda_agent.core.records import Candidate
from cuda_agent.judge.build.compiler import Compiler, write_files
from cuda_agent.judge.build.extension import is_binding, make_compiler
from cuda_agent.judge.inspection.compilers import parse_ptxas, parse_vectorised
from cuda_agent.judge.inspection.disassembly import Function, parse_objdump, parse_sass
from cuda_agent.judge.inspection.traced import find_cuda_tool

_OUTPUT_BYTES = 8 << 20
_MOST_FUNCTIONS = 40


@dataclass
class Found:
    """The findings so far."""

    code: list[KernelCode] = field(default_factory=list)
    loops: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Adds a note, once."""
        if text not in self.notes:
            self.notes.append(text)


def look_at_code(candidate: Candidate, objects: Mapping[str, Path], options: JudgeOptions) -> Found:
    """Returns kernels or functions, vectorised loops, and notes on what couldn't be found. `objects` maps each source
    to its object file."""
    compiler = make_compiler(options)
    files = {name: text for name, text in candidate.files.items() if name.startswith("kernels/")}
    found = Found()
    for source in sorted(objects):
        if not is_binding(source, files[source]):
            (_cuda_source if source.endswith(".cu") else _cpp_source)(compiler, files, source, objects[source], found)
    return found


def _cuda_source(compiler: Compiler, files: Mapping[str, str], source: str, _made: Path, found: Found) -> None:
    with compiler.cache.scratch() as scratch:
        root = write_files(scratch / "workspace", files)
        cubin = scratch / "device.cubin"
        command = [*compiler.tools.nvcc_command(), "-Xptxas=-v", "-cubin", source, "-o", str(cubin)]
        outcome = compiler.run(command, root, scratch, cubin)
        if outcome.output is None:
            found.notes.append(f"{source}: no report of the compiler: {outcome.fault}")
            return
        resources = parse_ptxas(outcome.log)
        sass = parse_sass(_disassembled(compiler, cubin, found))
    names = demangled(list(resources))
    for symbol, used in resources.items():
        counted = sass.get(symbol, Function()).counted()
        found.code.append(KernelCode(symbol=symbol, name=names[symbol], source=source, **counted, **used))


def _disassembled(compiler: Compiler, cubin: Path, found: Found) -> str:
    """Returns SASS as text, or "" and a note where there is no disassembler."""
    tool, options = _find_disassembler("nvdisasm"), ["-c"]
    if tool is None:
        tool, options = _find_disassembler("cuobjdump"), ["-sass"]
    if tool is None:
        found.note("neither nvdisasm nor cuobjdump was found (CUDA toolkit, or triton's wheel): no instruction mix")
        return ""
    return _printed(compiler, [str(tool), *options], cubin, found)


def _cpp_source(compiler: Compiler, files: Mapping[str, str], source: str, made: Path, found: Found) -> None:
    if compiler.tools.device is Device.CPU:
        with compiler.cache.scratch() as scratch:
            root = write_files(scratch / "workspace", files)
            target = scratch / "object.o"
            report = "-fopt-info-vec-optimized-missed"
            command = [*compiler.tools.cxx_command(binding=False), report, "-c", source, "-o", str(target)]
            outcome = compiler.run(command, root, scratch, target)
            found.loops += parse_vectorised(outcome.log, [source])
    tool = shutil.which("objdump")
    if tool is None:
        found.note("objdump was not found (binutils): no instruction mix")
        return
    text = _printed(compiler, [tool, "-d", "--no-show-raw-insn", "-C"], made, found)
    for name, function in list(parse_objdump(text).items())[:_MOST_FUNCTIONS]:
        found.code.append(KernelCode(symbol=name, name=name, source=source, **function.counted()))


def _printed(compiler: Compiler, command: Sequence[str], made: Path, found: Found) -> str:
    """Returns the standard output of a tool. It runs in the compiler's sandbox, since its input comes from a hostile
    source."""
    with compiler.cache.scratch() as scratch:
        shutil.copyfile(made, scratch / "made")
        target = scratch / "printed"
        shell = ["/bin/sh", "-c", 'exec "$@" > printed', "sh", *command, "made"]
        outcome = compiler.run(shell, scratch, scratch, target)
        if outcome.output is None:
            found.note(f"{Path(command[0]).name} failed: {outcome.fault} {outcome.log[-200:]}".strip())
            return ""
        with target.open("rb") as stream:
            return stream.read(_OUTPUT_BYTES).decode(errors="replace")


def demangled(symbols: list[str]) -> dict[str, str]:
    """Returns readable names without parameter lists, or the symbols themselves where c++filt is missing."""
    tool = shutil.which("c++filt")
    lines = symbols
    if tool is not None and symbols:
        done = subprocess.run([tool, "-p"], input="\n".join(symbols), capture_output=True, text=True, check=False)
        lines = done.stdout.splitlines() if len(done.stdout.splitlines()) == len(symbols) else symbols
    return {symbol: line.removeprefix("void ")[:160] for symbol, line in zip(symbols, lines, strict=True)}


def _find_disassembler(name: str) -> Path | None:
    """Finds one of CUDA's disassemblers, which also come with triton's wheel."""
    spec = importlib.util.find_spec("triton")
    folders = spec.submodule_search_locations if spec is not None else None
    return find_cuda_tool(name, more=[Path(folder) / "backends/nvidia/bin" / name for folder in folders or ()])
