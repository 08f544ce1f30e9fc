"""Makes the report of an inspection: generated code, a run with kernel times, counters, and the limit."""

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cuda_agent.core.assets import program
from cuda_agent.core.enums import Device
from cuda_agent.core.errors import TaskError
from cuda_agent.core.inspection import InspectReport, KernelRun, LeastWork, Roofline
from cuda_agent.core.records import BuildReport, Candidate
from cuda_agent.judge.inspection import counters as ncu
from cuda_agent.judge.inspection import limit
from cuda_agent.judge.inspection.code import Found, demangled, look_at_code
from cuda_agent.judge.inspection.reached import keep_roofline, known_roofline, work_needed
from cuda_agent.judge.inspection.traced import find_cuda_tool, run_traced, written_call
from cuda_agent.judge.resources import Resources
from cuda_agent.workers.gpulock import gpu_lock, gpu_uuid
from cuda_agent.workers.requests.candidate import INSPECTED

_RUN_TIMEOUT_S = 180.0
#: what a `KernelRun` takes from `Counters` as it is.
_COUNTED = (
    "dram_percent", "memory_percent", "compute_percent", "sectors_per_load", "sectors_per_store", "stalls",
)  # fmt: skip


def inspect(session: Resources, candidate: Candidate) -> InspectReport | BuildReport:
    """Finds what limits a candidate. Returns the build's report where it doesn't compile. The candidate's own process
    reports its run, so the result decides nothing. Raises what `Resources` raises; a candidate that fails when it runs
    leaves the report without a run, and a note."""
    built = session.built(candidate)
    if built.library is None:
        return built.report
    device = session.options.device
    session.progress("inspect", "reading the compiler's report and the disassembly")
    found = look_at_code(candidate, built.objects, session.options)
    session.progress("inspect", "running and counting")
    report = _Dynamic(session, candidate, built.library, found).run()
    return InspectReport(device=device, **vars(found), **report)


class _Dynamic:
    """Runs a candidate from files in a sandbox of its own, since Nsight Compute must reach into it."""

    def __init__(self, session: Resources, candidate: Candidate, library: Path, found: Found) -> None:
        self._session, self._candidate, self._library, self._found = session, candidate, library, found
        self._device = session.options.device

    def run(self) -> dict[str, Any]:
        """Returns the fields of the report."""
        session = self._session
        with written_call(session, self._candidate, self._library) as (files, scratch):
            session.reference.release()
            known = known_roofline(self._device)
            with gpu_lock(gpu_uuid(self._device) or "cpu"):
                ran = self._ran(files, scratch, () if known else ("--roofline",))
                counted = self._counted(files, scratch) if ran and self._device is Device.CUDA else {}
        if not ran:
            return {"source": "counted"}
        roofline = known or keep_roofline(self._device, ran.get("roofline"))
        return self._fields(ran, counted, roofline)

    def _program(self, files: Path, *options: str) -> list[str]:
        return program("cuda_agent.workers.inside.inspected", str(files), *options)

    def _ran(self, files: Path, scratch: Path, options: tuple[str, ...]) -> dict[str, Any]:
        command = self._program(files, *options)
        code, text = run_traced(self._session, command, scratch, (files,), timeout_s=_RUN_TIMEOUT_S)
        lines = [line for line in text.splitlines() if line.startswith(INSPECTED)]
        try:
            said = json.loads(lines[-1].removeprefix(INSPECTED)) if code == 0 and lines else None
        except ValueError:
            said = None
        if not isinstance(said, dict):
            last = text.strip().splitlines()[-1:] or ["it printed nothing"]
            how = "took too long" if code is None else f"failed (exit code {code})"
            self._found.notes.append(f"the candidate's run {how}: {last[0][:300]}")
            return {}
        return said

    def _counted(self, files: Path, scratch: Path) -> dict[str, ncu.Counters]:
        """Returns Nsight Compute's numbers by kernel. It is empty, with a note, where they can't be counted."""
        # Nsight Compute also has a folder of its own.
        own = sorted(Path("/opt/nvidia/nsight-compute").glob("*/ncu"), reverse=True)
        tool = find_cuda_tool("ncu", more=own)
        if tool is None:
            self._found.notes.append("Nsight Compute (ncu) was not found: counted bytes and operations stand in")
            return {}
        log = scratch / "ncu.csv"
        command = ncu.command(str(tool), log, self._program(files, "--counters"))
        readable = files, tool.resolve().parent
        code, text = run_traced(self._session, command, scratch, readable, timeout_s=_RUN_TIMEOUT_S)
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
        precision = self._session.options.precision
        fields |= vars(limit.of_call(fields["work"], roofline, busy or latency, latency, precision=precision))
        top = kernels[0] if kernels else None
        # Where one kernel makes up the call, its counters say more than the work that is counted from the graph.
        if top is not None and top.limit is not None and top.share >= 0.5 and (busy or 0) >= limit.BUSY * latency:
            why = f"{top.name}, {top.share:.0%} of the time: {top.why}; {fields['why']}"
            return {**fields, "limit": top.limit, "why": why}
        return fields

    def _work(self) -> LeastWork | None:
        try:
            self._session.graph()
        except TaskError as error:
            self._found.notes.append(f"operations aren't counted: {error.cause}")
        return work_needed(self._session)

    def _kernels(self, ran: dict[str, Any], counted: dict[str, ncu.Counters]) -> tuple[KernelRun, ...]:
        """Returns CUPTI's kernels with Nsight Compute's numbers. Rows of the worker that lack the right form become
        notes."""
        rows = ran.get("kernels") if isinstance(ran.get("kernels"), list) else []
        if ran.get("kernels_error"):
            self._found.notes.append(f"no times by kernel: {str(ran['kernels_error'])[:200]}")
        names = demangled([str(row[0]) for row in rows or []])
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
        fields |= {name: getattr(numbers, name) for name in _COUNTED} | {"limit": named, "why": why}
        fields["dram_gb_s"] = None if numbers.dram_bytes is None else numbers.dram_bytes / numbers.time_us / 1e3
    return KernelRun(symbol=symbol, name=name, launches=launches, time_us=time_us, share=time_us / total_us, **fields)


def _positive(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and value > 0 else None
