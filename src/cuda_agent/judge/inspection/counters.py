"""Runs Nsight Compute and keeps the few numbers of each kernel that decide."""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_TIME = "gpu__time_duration.sum"
_DRAM_BYTES = "dram__bytes.sum"
_DRAM = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
_MEMORY = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
_COMPUTE = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
_OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
_LOAD = ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum")
_STORE = ("l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum", "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum")
_STALL, _STALL_END = "smsp__average_warps_issue_stalled_", "_per_issue_active.ratio"
_STALLS = (
    "long_scoreboard", "short_scoreboard", "math_pipe_throttle", "lg_throttle", "mio_throttle", "tex_throttle", "wait",
    "barrier", "membar", "not_selected", "dispatch_stall", "drain", "imc_miss", "no_instruction", "sleeping", "gmma",
    "branch_resolving",
)  # fmt: skip
#: what each stall reason means to the author of a kernel.
STALL_MEANING = {
    "long_scoreboard": "waiting for global memory",
    "short_scoreboard": "waiting for shared memory or special functions",
    "math_pipe_throttle": "arithmetic units busy",
    "lg_throttle": "too many small memory instructions",
    "mio_throttle": "shared memory and special functions busy",
    "wait": "fixed latency of arithmetic",
    "barrier": "waiting at __syncthreads",
    "not_selected": "enough warps ready",
    "gmma": "waiting for tensor cores",
    "drain": "waiting for the last stores",
    "imc_miss": "constants not in their cache",
    "no_instruction": "instructions not in their cache",
}
_METRICS = (
    _TIME, _DRAM_BYTES, _DRAM, _MEMORY, _COMPUTE, _OCCUPANCY, *_LOAD, *_STORE,
    *(f"{_STALL}{name}{_STALL_END}" for name in _STALLS if name != "gmma"),
)  # fmt: skip
#: factors to base units, by the unit in the second row of ncu's table.
_UNITS = {
    "ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3, "s": 1e6, "second": 1e6,
    "byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9,
}  # fmt: skip


@dataclass
class Counters:
    """Counters of all launches of one kernel in one call, in microseconds, bytes and percent. None: not counted."""

    launches: int
    time_us: float
    dram_bytes: float | None = None
    dram_percent: float | None = None
    memory_percent: float | None = None
    compute_percent: float | None = None
    occupancy_percent: float | None = None
    sectors_per_load: float | None = None
    sectors_per_store: float | None = None
    stalls: dict[str, float] = field(default_factory=dict)


def command(ncu: str, log: Path, program: Sequence[str]) -> list[str]:
    """Returns the command. It leaves the clocks as they are, as the judge's timing does, and counts only the ranges
    that the program marks."""
    return [
        ncu, "--csv", "--page", "raw", "--print-kernel-base", "mangled", "--clock-control", "none",
        "--log-file", str(log), "--profile-from-start", "off", "--metrics", ",".join(_METRICS), *program,
    ]  # fmt: skip


def parse(text: str) -> dict[str, Counters]:
    """Maps mangled names to counters, in the order of their first launch. Percentages are means weighted by time. The
    result is empty when the text holds no table."""
    rows = _rows(text)
    grouped: dict[str, list[dict[str, float]]] = defaultdict(list)
    for name, row in rows:
        if row.get(_TIME):
            grouped[name].append(row)
    return {name: _summed(launches) for name, launches in grouped.items()}


def refusal(text: str) -> str:
    """Returns in one line why there is no table."""
    if "ERR_NVGPUCTRPERM" in text:
        return "the driver gives this user no rights to the GPU's counters (ERR_NVGPUCTRPERM)"
    lines = [line.strip("= ").strip() for line in text.splitlines() if "ERROR" in line or "error" in line.lower()]
    return lines[0][:300] if lines else "it counted nothing"


def _rows(text: str) -> list[tuple[str, dict[str, float]]]:
    lines = text.splitlines()
    start = next((index for index, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return []
    table = list(csv.reader(line for line in lines[start:] if line.startswith('"')))
    header, units, body = table[0], table[1] if len(table) > 1 else [], table[2:]
    if "Kernel Name" not in header:
        return []
    at = header.index("Kernel Name")
    found = []
    for row in body:
        values = {}
        for name, unit, text_value in zip(header, units, row, strict=False):
            if "__" in name and (number := _number(text_value)) is not None:
                values[name] = number * _UNITS.get(unit, 1.0)
        found.append((row[at], values))
    return found


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def _summed(launches: Sequence[Mapping[str, float]]) -> Counters:
    time = sum(row[_TIME] for row in launches)

    def total(name: str) -> float | None:
        values = [row[name] for row in launches if name in row]
        return sum(values) if values else None

    def mean(name: str) -> float | None:
        pairs = [(row[name], row[_TIME]) for row in launches if name in row]
        weight = sum(seconds for _, seconds in pairs)
        return sum(value * seconds for value, seconds in pairs) / weight if weight else None

    def ratio(names: tuple[str, str]) -> float | None:
        above, below = total(names[0]), total(names[1])
        return above / below if above is not None and below else None

    stalls = Counter({name: mean(f"{_STALL}{name}{_STALL_END}") or 0.0 for name in _STALLS})
    return Counters(
        launches=len(launches),
        time_us=time,
        dram_bytes=total(_DRAM_BYTES),
        dram_percent=mean(_DRAM),
        memory_percent=mean(_MEMORY),
        compute_percent=mean(_COMPUTE),
        occupancy_percent=mean(_OCCUPANCY),
        sectors_per_load=ratio(_LOAD),
        sectors_per_store=ratio(_STORE),
        stalls={name: value for name, value in stalls.most_common(3) if value > 0.1},
    )


def named_stalls(stalls: Mapping[str, float]) -> Iterable[str]:
    """Yields texts such as `long_scoreboard 12.3 (waiting for global memory)`."""
    for name, value in stalls.items():
        meaning = STALL_MEANING.get(name)
        yield f"{name} {value:.1f}" + (f" ({meaning})" if meaning else "")
