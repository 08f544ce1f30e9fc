"""Puts the report together: compiles once more for the compiler's own words, disassembles, runs, counts, names the
limit."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from cuda_agent.core.enums import Device
from cuda_agent.core.errors import CudaAgentError, TaskError
from cuda_agent.core.files import cache_dir, write_durably
from cuda_agent.core.hashing import digest_text
from cuda_agent.core.inspection import InspectReport, KernelCode, KernelRun, Roofline, Work
from cuda_agent.core.records import BuildReport, Candidate
from cuda_agent.core.stack import find_nvcc, read_stack
from cuda_agent.judge.buffers import extent_bytes
from cuda_agent.judge.build import is_binding, make_compiler
from cuda_agent.judge.compiler import Compiler
from cuda_agent.judge.gpulock import gpu_lock
from cuda_agent.judge.inspection import counters as ncu
from cuda_agent.judge.inspection import limit
from cuda_agent.judge.inspection.compilers import Resources, parse_ptxas, parse_vectorised
from cuda_agent.judge.inspection.disassembly import Function, cpu_mix, parse_objdump, parse_sass
from cuda_agent.judge.process import memory_limit_mib
from cuda_agent.judge.profile import gpu_uuid
from cuda_agent.judge.roofline import work_of
from cuda_agent.judge.sanitizer import write_call
from cuda_agent.judge.worker.inspected import MARK
from cuda_agent.workspace.sandbox import Limits, SandboxSpec, spawn

if TYPE_CHECKING:
    from cuda_agent.judge.session import JudgeSession

_PACKAGES = Path(__file__).resolve().parents[3]
_RUN_TIMEOUT_S = 180.0
_OUTPUT_BYTES = 8 << 20
_MOST_FUNCTIONS = 40


@dataclass
class _Found:
    """What was found so far."""

    code: list[KernelCode] = field(default_factory=list)
    loops: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def inspect(session: JudgeSession, candidate: Candidate) -> InspectReport | BuildReport:
    """What limits a candidate; the build's report where it doesn't compile. The run is the candidate's own word.

    Raises what `JudgeSession` raises; a candidate that fails when it runs leaves the report without a run, and a note.
    """
    built = session.built(candidate)
    if built.library is None:
        return built.report
    device = session.options.device
    session.progress("inspect", "reading the compiler's report and the disassembly")
    found = _static(session, candidate, built.objects)
    session.progress("inspect", "running and counting")
    report = _Dynamic(session, candidate, built.library, found).run()
    return InspectReport(
        device=device, code=tuple(found.code), loops=tuple(found.loops), notes=tuple(found.notes), **report
    )  # fmt: skip


# ---------------------------------------------------------------- what the compiler made


def _static(session: JudgeSession, candidate: Candidate, objects: Mapping[str, Path]) -> _Found:
    compiler = make_compiler(session.options.device, session.options, None, None)
    files = {name: text for name, text in candidate.files.items() if name.startswith("kernels/")}
    found = _Found()
    for source in sorted(objects):
        if not is_binding(source, files[source]):
            (_cuda_source if source.endswith(".cu") else _cpp_source)(compiler, files, source, objects[source], found)
    return found


def _cuda_source(compiler: Compiler, files: Mapping[str, str], source: str, _made: Path, found: _Found) -> None:
    with compiler.cache.scratch() as scratch:
        root = _lay_out(files, scratch)
        cubin = scratch / "device.cubin"
        command = [*compiler.tools.nvcc_command(), "-Xptxas=-v", "-cubin", source, "-o", str(cubin)]
        outcome = compiler.run(command, root, scratch, cubin)
        if outcome.output is None:
            found.notes.append(f"{source}: no report of the compiler: {outcome.fault}")
            return
        resources = parse_ptxas(outcome.log)
        sass = parse_sass(_disassembled(compiler, cubin, found))
    names = _demangled(list(resources))
    for symbol, used in resources.items():
        found.code.append(_kernel_code(symbol, names[symbol], source, used, sass.get(symbol)))


def _kernel_code(symbol: str, name: str, source: str, used: Resources, function: Function | None) -> KernelCode:
    return KernelCode(
        symbol=symbol,
        name=name,
        source=source,
        registers=used.registers,
        shared_bytes=used.shared_bytes,
        stack_bytes=used.stack_bytes,
        spill_store_bytes=used.spill_store_bytes,
        spill_load_bytes=used.spill_load_bytes,
        instructions=function.instructions if function else 0,
        mix=function.mix() if function else {},
        access_bits=dict(sorted(function.access_bits.items())) if function else {},
    )


def _disassembled(compiler: Compiler, cubin: Path, found: _Found) -> str:
    """SASS as text; "" with a note where there is no disassembler."""
    tool, options = find_tool("nvdisasm"), ["-c"]
    if tool is None:
        tool, options = find_tool("cuobjdump"), ["-sass"]
    if tool is None:
        _note_once(
            found, "neither nvdisasm nor cuobjdump was found (CUDA toolkit, or triton's wheel): no instruction mix"
        )
        return ""
    return _printed(compiler, [tool, *options], cubin, found)


def _cpp_source(compiler: Compiler, files: Mapping[str, str], source: str, made: Path, found: _Found) -> None:
    if compiler.tools.device is Device.CPU:
        with compiler.cache.scratch() as scratch:
            root = _lay_out(files, scratch)
            target = scratch / "object.o"
            report = "-fopt-info-vec-optimized-missed"
            command = [*compiler.tools.cxx_command(binding=False), report, "-c", source, "-o", str(target)]
            outcome = compiler.run(command, root, scratch, target)
            found.loops += parse_vectorised(outcome.log, [source])
    tool = shutil.which("objdump")
    if tool is None:
        _note_once(found, "objdump was not found (binutils): no instruction mix")
        return
    text = _printed(compiler, [tool, "-d", "--no-show-raw-insn", "-C"], made, found)
    for name, function in list(parse_objdump(text).items())[:_MOST_FUNCTIONS]:
        found.code.append(
            KernelCode(
                symbol=name, name=name, source=source, instructions=function.instructions, mix=cpu_mix(function)
            )
        )  # fmt: skip


def _lay_out(files: Mapping[str, str], scratch: Path) -> Path:
    root = scratch / "workspace"
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def _printed(compiler: Compiler, command: Sequence[str], made: Path, found: _Found) -> str:
    """Standard output of a tool that reads what a hostile source was compiled to, so in the compiler's sandbox."""
    with compiler.cache.scratch() as scratch:
        shutil.copyfile(made, scratch / "made")
        target = scratch / "printed"
        shell = ["/bin/sh", "-c", 'exec "$@" > printed', "sh", *command, "made"]
        outcome = compiler.run(shell, scratch, scratch, target)
        if outcome.output is None:
            _note_once(found, f"{Path(command[0]).name} failed: {outcome.fault} {outcome.log[-200:]}".strip())
            return ""
        with target.open("rb") as stream:
            return stream.read(_OUTPUT_BYTES).decode(errors="replace")


def _demangled(symbols: list[str]) -> dict[str, str]:
    """Readable names, without parameter lists; the symbols themselves where c++filt isn't there."""
    tool = shutil.which("c++filt")
    lines = symbols
    if tool is not None and symbols:
        done = subprocess.run([tool, "-p"], input="\n".join(symbols), capture_output=True, text=True, check=False)
        lines = done.stdout.splitlines() if len(done.stdout.splitlines()) == len(symbols) else symbols
    return {symbol: line.removeprefix("void ")[:160] for symbol, line in zip(symbols, lines, strict=True)}


def find_tool(name: str) -> str | None:
    """A disassembler of CUDA's: on PATH, in the toolkit, or in triton's wheel, which comes with torch for CUDA."""
    nvcc, home = find_nvcc(), os.environ.get("CUDA_HOME")
    folders = [f"{home}/bin"] if home else []
    folders += [str(Path(nvcc).resolve().parent)] if nvcc else []
    folders.append("/usr/local/cuda/bin")
    spec = importlib.util.find_spec("triton")
    if spec is not None and spec.submodule_search_locations:
        folders.append(f"{next(iter(spec.submodule_search_locations))}/backends/nvidia/bin")
    places = [shutil.which(name), *(f"{folder}/{name}" for folder in folders)]
    return next((path for path in places if path and os.access(path, os.X_OK)), None)


def _note_once(found: _Found, note: str) -> None:
    if note not in found.notes:
        found.notes.append(note)


# ---------------------------------------------------------------- how it ran


class _Dynamic:
    """Runs a candidate from files in a sandbox of its own, since Nsight Compute must reach into it."""

    def __init__(self, session: JudgeSession, candidate: Candidate, library: Path, found: _Found) -> None:
        self._session, self._candidate, self._library, self._found = session, candidate, library, found
        self._device = session.options.device

    def run(self) -> dict[str, Any]:
        """Fields of the report."""
        session = self._session
        reference = session.reference
        with tempfile.TemporaryDirectory(prefix="inspect-", dir=session.directory) as temporary:
            files, scratch = Path(temporary) / "files", Path(temporary) / "scratch"
            files.mkdir()
            scratch.mkdir()
            write_call(session, self._candidate, self._library, files)
            reference.release()
            known = _known_roofline(self._device)
            if known is None:
                call = json.loads((files / "call.json").read_text())
                (files / "call.json").write_text(json.dumps({**call, "roofline": True}))
            with gpu_lock(gpu_uuid(self._device) or "cpu"):
                ran = self._ran(files, scratch)
                counted = self._counted(files, scratch) if ran and self._device is Device.CUDA else {}
        if not ran:
            return {"source": "counted"}
        roofline = known or _keep_roofline(self._device, ran.get("roofline"))
        return self._fields(ran, counted, roofline)

    def _spawn(self, command: list[str], scratch: Path, readable: Sequence[Path], name: str) -> tuple[int | None, str]:
        settings = self._session.workers.settings
        spec = SandboxSpec(
            scratch=scratch,
            level=settings.level,
            readable=(_PACKAGES, *readable),
            hidden=settings.hidden,
            gpu=self._device is Device.CUDA,
            limits=Limits(memory_mib=memory_limit_mib(settings.memory_mib)),
            filter_syscalls=False,
        )
        log = scratch.parent / f"{name}.log"
        with spawn(command, spec, cwd=scratch, log=log) as process:
            try:
                code: int | None = process.wait(_RUN_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                code = None
        with log.open("rb") as stream:
            return code, stream.read(_OUTPUT_BYTES).decode(errors="replace")

    def _program(self, files: Path, *options: str) -> list[str]:
        return [sys.executable, "-P", "-m", "cuda_agent.judge.worker.inspected", str(files), *options]

    def _ran(self, files: Path, scratch: Path) -> dict[str, Any]:
        code, text = self._spawn(self._program(files), scratch, (files,), "run")
        lines = [line for line in text.splitlines() if line.startswith(MARK)]
        try:
            said = json.loads(lines[-1].removeprefix(MARK)) if code == 0 and lines else None
        except ValueError:
            said = None
        if not isinstance(said, dict):
            last = text.strip().splitlines()[-1:] or ["it printed nothing"]
            how = "took too long" if code is None else f"failed (exit code {code})"
            self._found.notes.append(f"the candidate's run {how}: {last[0][:300]}")
            return {}
        return said

    def _counted(self, files: Path, scratch: Path) -> dict[str, ncu.Counters]:
        """Nsight Compute's numbers by kernel; empty, with a note, where they can't be had."""
        tool = ncu.find_ncu()
        if tool is None:
            self._found.notes.append("Nsight Compute (ncu) was not found: counted bytes and operations stand in")
            return {}
        log = scratch / "ncu.csv"
        command = ncu.command(tool, log, self._program(files, "--counters"))
        code, text = self._spawn(command, scratch, (files, Path(tool).resolve().parent), "ncu")
        table = log.read_text(errors="replace") if log.is_file() and not log.is_symlink() else ""
        counted = ncu.parse(table)
        if not counted:
            why = "it took too long" if code is None else ncu.refusal(table + text)
            self._found.notes.append(f"Nsight Compute gave nothing: {why}; counted bytes and operations stand in")
        return counted

    def _fields(
        self, ran: dict[str, Any], counted: dict[str, ncu.Counters], roofline: Roofline | None
    ) -> dict[str, Any]:
        latency, busy = _positive(ran.get("latency_us")), _positive(ran.get("busy_us"))
        kernels = self._kernels(ran, counted)
        fields: dict[str, Any] = {
            "source": "nsight-compute" if counted else "counted",
            "latency_us": latency,
            "busy_us": busy,
            "kernels": kernels,
            "roofline": roofline,
            "work": self._work(),
        }
        if latency is None or roofline is None or fields["work"] is None:
            return fields
        precision = self._session.options.precision.value
        named = limit.of_call(fields["work"], roofline, busy or latency, latency, precision=precision)
        fields |= {"memory_share": named.memory_share, "compute_share": named.compute_share}
        top = kernels[0] if kernels else None
        # Counters of the kernel that is the call say more than work that is counted from outside.
        if top is not None and top.limit is not None and top.share >= 0.5 and (busy or 0) >= limit.BUSY * latency:
            return {
                **fields,
                "limit": top.limit,
                "why": f"{top.name}, {top.share:.0%} of the time: {top.why}; {named.why}",
            }
        return {**fields, "limit": named.limit, "why": named.why}

    def _work(self) -> Work | None:
        try:
            self._session.graph()
        except TaskError as error:
            self._found.notes.append(f"operations aren't counted: {error.cause}")
        return work_needed(self._session)

    def _kernels(self, ran: dict[str, Any], counted: dict[str, ncu.Counters]) -> tuple[KernelRun, ...]:
        """From CUPTI, with Nsight Compute's numbers beside them. What the worker says is taken as far as it has the
        right form."""
        rows = ran.get("kernels") if isinstance(ran.get("kernels"), list) else []
        if ran.get("kernels_error"):
            self._found.notes.append(f"no times by kernel: {str(ran['kernels_error'])[:200]}")
        names = _demangled([str(row[0]) for row in rows or []])
        total = sum(_positive(row[2]) or 0.0 for row in rows or []) or 1.0
        found = []
        for row in rows or []:
            try:
                found.append(_kernel_run(row, names[str(row[0])], total, counted, ran.get("multiprocessor") or {}))
            except (ValidationError, TypeError, ValueError, KeyError, IndexError):
                self._found.notes.append(f"an unreadable record of {str(row)[:80]}")
        return tuple(found)


def _kernel_run(
    row: list[Any], name: str, total_us: float, counted: dict[str, ncu.Counters], facts: dict[str, int]
) -> KernelRun:
    symbol, launches, time_us, launch = str(row[0]), float(row[1]), float(row[2]), row[3]
    fields: dict[str, Any] = {}
    if launch is not None:
        grid, block, registers, shared = launch
        threads = int(block[0]) * int(block[1]) * int(block[2])
        bound = limit.occupancy_bound(threads, int(registers), int(shared), facts)
        fields |= {"grid": tuple(grid), "block": tuple(block), "occupancy_percent": bound, "occupancy_is_bound": True}
    numbers = counted.get(symbol)
    if numbers is not None:
        named, why = limit.of_kernel(numbers)
        achieved = numbers.occupancy_percent
        fields |= {} if achieved is None else {"occupancy_percent": achieved, "occupancy_is_bound": False}
        fields |= {
            "dram_gb_s": None if numbers.dram_bytes is None else numbers.dram_bytes / numbers.time_us / 1e3,
            "dram_percent": numbers.dram_percent,
            "memory_percent": numbers.memory_percent,
            "compute_percent": numbers.compute_percent,
            "sectors_per_load": numbers.sectors_per_load,
            "sectors_per_store": numbers.sectors_per_store,
            "stalls": numbers.stalls,
            "limit": named,
            "why": why,
        }
    return KernelRun(
        symbol=symbol, name=name, launches=launches, time_us=time_us, share=time_us / total_us, **fields
    )  # fmt: skip


def _positive(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and value > 0 else None


def work_needed(session: JudgeSession) -> Work:
    """What one call of the session's task can't do without; no operations where its graph can't be captured."""
    spec = session.reference.spec
    total = sum(extent_bytes(meta) for meta in (*spec.inputs, *spec.outputs, *spec.state.values()))
    graph = session.known_graph()
    if graph is None:
        return Work(bytes=total, product_flops=0, other_flops=0)
    products = work_of(graph, spec.outputs).flops
    return Work(bytes=total, product_flops=products, other_flops=limit.other_flops(graph))


# ---------------------------------------------------------------- the roofline, kept


def device_roofline(device: Device) -> Roofline | None:
    """What the device reaches at the most: as it is known, else measured now, in this process, for which nobody else
    may use the device. None where it can't be measured."""
    known = _known_roofline(device)
    if known is not None:
        return known
    from cuda_agent.judge.worker.inspected import measure_roofline

    return _keep_roofline(device, measure_roofline(device is Device.CUDA))


def _roofline_file(device: Device) -> Path:
    stack = read_stack()
    parts = [stack.gpus[0].uuid, stack.driver or ""] if device is Device.CUDA and stack.gpus else [stack.cpu]
    key = digest_text(*parts, str(stack.cpu_cores), stack.torch or "")
    return cache_dir() / f"roofline-{key[:16]}.json"


def _known_roofline(device: Device) -> Roofline | None:
    try:
        return Roofline.model_validate_json(_roofline_file(device).read_text())
    except (OSError, ValidationError):
        return None


def _keep_roofline(device: Device, measured: object) -> Roofline | None:
    try:
        roofline = Roofline.model_validate(measured)
        write_durably(_roofline_file(device), roofline.model_dump_json())
    except (ValidationError, CudaAgentError):
        return None
    return roofline


__all__ = ["device_roofline", "find_tool", "inspect", "work_needed"]
