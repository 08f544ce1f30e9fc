"""Runs Nsight Compute and keeps the few numbers of each kernel that decide."""

import csv
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cuda_agent.core.assets import tables


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
    known = tables(__file__)
    stalls = (known["stall"].format(name) for name in known["stalls"] if name != "gmma")
    ratios = (name for pair in known["ratios"].values() for name in pair)
    metrics = ",".join((known["time_us"], known["dram_bytes"], *known["percentages"].values(), *ratios, *stalls))
    return [
        ncu, "--csv", "--page", "raw", "--print-kernel-base", "mangled", "--clock-control", "none",
        "--log-file", str(log), "--profile-from-start", "off", "--metrics", metrics, *program,
    ]  # fmt: skip


def parse(text: str) -> dict[str, Counters]:
    """Maps mangled names to counters, in the order of their first launch. Percentages are means weighted by time. The
    result is empty when the text holds no table."""
    time_us = tables(__file__)["time_us"]
    grouped: dict[str, list[dict[str, float]]] = defaultdict(list)
    for name, row in _rows(text):
        if row.get(time_us):
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
                values[name] = number * tables(__file__)["units"].get(unit, 1.0)
        found.append((row[at], values))
    return found


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def _summed(launches: Sequence[Mapping[str, float]]) -> Counters:
    known = tables(__file__)
    time_us: str = known["time_us"]

    def total(name: str) -> float | None:
        values = [row[name] for row in launches if name in row]
        return sum(values) if values else None

    def mean(name: str) -> float | None:
        pairs = [(row[name], row[time_us]) for row in launches if name in row]
        weight = sum(seconds for _, seconds in pairs)
        return sum(value * seconds for value, seconds in pairs) / weight if weight else None

    def ratio(names: Sequence[str]) -> float | None:
        above, below = map(total, names)
        return above / below if above is not None and below else None

    stalls = Counter({name: mean(known["stall"].format(name)) or 0.0 for name in known["stalls"]})
    return Counters(
        launches=len(launches),
        time_us=sum(row[time_us] for row in launches),
        dram_bytes=total(known["dram_bytes"]),
        stalls={name: value for name, value in stalls.most_common(3) if value > 0.1},
        **{name: mean(metric) for name, metric in known["percentages"].items()},
        **{name: ratio(metrics) for name, metrics in known["ratios"].items()},
    )


def named_stalls(stalls: Mapping[str, float]) -> Iterable[str]:
    """Yields texts such as `long_scoreboard 12.3 (waiting for global memory)`."""
    for name, value in stalls.items():
        meaning = tables(__file__)["stalls"][name]
        yield f"{name} {value:.1f}" + (f" ({meaning})" if meaning else "")
