"""Nsight Compute's table -> the few numbers that decide."""

from __future__ import annotations

import pytest

from cuda_agent.judge.inspection.counters import command, parse, refusal
from cuda_agent.judge.inspection.limit import of_kernel

HEADER = [
    "ID", "Process ID", "Kernel Name", "Block Size", "dram__bytes.sum",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed", "gpu__time_duration.sum",
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum", "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed", "sm__warps_active.avg.pct_of_peak_sustained_active",
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",
    "smsp__average_warps_issue_stalled_wait_per_issue_active.ratio",
]  # fmt: skip
UNITS = ["", "", "", "", "Mbyte", "%", "%", "us", "", "", "%", "%", "inst", "inst"]
FIRST = ["0", "77", "_Z5scalePf", "(256, 1, 1)", "1,610.61", "91.5", "91.5", "400.00", "1,000", "16,000", "22.5", "80",
         "35.2", "1.5"]  # fmt: skip
AGAIN = ["1", "77", "_Z5scalePf", "(256, 1, 1)", "1,610.61", "89.5", "89.5", "400.00", "1,000", "16,000", "22.5", "80",
         "35.2", "1.5"]  # fmt: skip
OTHER = [
    "2",
    "77",
    "_Z4loopPf",
    "(256, 1, 1)",
    "0.10",
    "0.1",
    "5.0",
    "100.00",
    "n/a",
    "n/a",
    "93.0",
    "95",
    "0.05",
    "2.5",
]


def table(*rows: list[str], units: list[str] = UNITS) -> str:
    lines = [",".join(f'"{cell}"' for cell in row) for row in (HEADER, units, *rows)]
    return "==PROF== Connected to process 77\n" + "\n".join(lines) + "\n==PROF== Disconnected\n"


def test_launches_of_a_kernel_are_one() -> None:
    found = parse(table(FIRST, AGAIN, OTHER))
    assert list(found) == ["_Z5scalePf", "_Z4loopPf"]
    scale = found["_Z5scalePf"]
    assert (scale.launches, scale.time_us) == (2, pytest.approx(800))
    assert scale.dram_bytes == pytest.approx(2 * 1610.61e6)
    assert scale.dram_percent == pytest.approx(90.5)
    assert scale.sectors_per_load == pytest.approx(16)
    assert scale.stalls == {"long_scoreboard": pytest.approx(35.2), "wait": pytest.approx(1.5)}
    loop = found["_Z4loopPf"]
    assert loop.sectors_per_load is None
    assert list(loop.stalls) == ["wait"]


def test_units_are_read_from_the_table() -> None:
    units = [{"us": "ns", "Mbyte": "Gbyte"}.get(unit, unit) for unit in UNITS]
    scale = parse(table(FIRST, units=units))["_Z5scalePf"]
    assert scale.time_us == pytest.approx(0.4)
    assert scale.dram_bytes == pytest.approx(1610.61e9)


def test_the_limit_of_a_kernel() -> None:
    found = parse(table(FIRST, OTHER))
    limit, why = of_kernel(found["_Z5scalePf"])
    assert limit == "memory"
    assert "memory 92 %" in why
    assert "long_scoreboard 35.2 (waiting for global memory)" in why
    assert of_kernel(found["_Z4loopPf"])[0] == "compute"
    idle = list(OTHER)
    idle[10] = "12.0"
    assert of_kernel(parse(table(idle))["_Z4loopPf"])[0] == "latency"


def test_without_a_table_it_says_why() -> None:
    denied = "==PROF== Connected\n==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access counters\n"
    assert parse(denied) == {}
    assert "no rights" in refusal(denied)
    assert refusal("==ERROR== Failed to find metric foo\n") == "ERROR== Failed to find metric foo"
    assert refusal("") == "it counted nothing"
    assert parse('"ID","Kernel Name"\n') == {}


def test_clocks_are_left_alone(tmp_path) -> None:  # type: ignore[no-untyped-def]
    line = " ".join(command("ncu", tmp_path / "log", ["python", "x"]))
    assert "--clock-control none" in line
    assert line.endswith("python x")
