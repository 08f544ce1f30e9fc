"""compute-sanitizer's reports as text, and what is concluded from them."""

from __future__ import annotations

from pathlib import Path

import pytest

import builders
from cuda_agent.core.enums import Device, Verdict
from cuda_agent.core.errors import DeviceError, UsageError
from cuda_agent.judge.inspection import sanitizer
from cuda_agent.judge.inspection.sanitizer import FOUND, conclude, merged, parse
from cuda_agent.reward import reward

MEMCHECK = """hello from the candidate
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at scale(const float *, float *, int)+0x150 in scale.cu:9
=========     by thread (0,0,0) in block (4,0,0)
=========     Access to 0x7f5d7ea01000 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f5d7ea00000 of size 4,096 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: launch_scale in scale.cu:20 [0x2b8a] in cuda_extension.so
=========         Host Frame: main [0xb2e1] in python3
=========
========= Invalid __global__ write of size 4 bytes
=========     at scale(const float *, float *, int)+0x150 in scale.cu:9
=========     by thread (1,0,0) in block (4,0,0)
=========     Access to 0x7f5d7ea01004 is out of bounds
=========     and is 5 bytes after the nearest allocation at 0x7f5d7ea00000 of size 4,096 bytes
=========
========= Invalid __shared__ read of size 8 bytes
=========     at other()+0x20
=========     by thread (3,0,0) in block (0,0,0)
=========     Address 0x400 is misaligned
=========
========= Program hit cudaErrorLaunchFailure (error 719) due to "unspecified launch failure" on CUDA API call to
=========     Saved host backtrace up to driver entry point at error
=========
========= Target application returned an error
========= ERROR SUMMARY: 3 errors
"""
RACECHECK = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at total(const float *, float *)+0x2d0 in sum.cu:12
=========     and Read access at total(const float *, float *)+0x3f0 in sum.cu:14 [1016 hazards]
=========
========= Warning: Race reported between Write access at total(const float *, float *)+0x2d0 in sum.cu:12
=========     and Write access at total(const float *, float *)+0x2d0 in sum.cu:12 [12 hazards]
=========
========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)
"""
CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"


def test_memcheck_findings_are_lines_and_equal_ones_are_counted() -> None:
    found = parse(MEMCHECK, "memcheck")
    assert [v.rule for v in found] == ["memcheck", "memcheck"] and {v.layer for v in found} == {"sanitizer"}
    first, second = (v.detail for v in found)
    assert first.startswith("Invalid __global__ write of size 4 bytes, at scale(") and "(2 times)" in first
    assert "scale.cu:9" in first and "after the nearest allocation" in first and "Host Frame" not in first
    assert second.startswith("Invalid __shared__ read") and "other()" in second


def test_racecheck_counts_errors_only() -> None:
    found = parse(RACECHECK, "racecheck")
    assert len(found) == 1 and "sum.cu:12, and Read access" in found[0].detail


def test_races_in_libraries_are_theirs() -> None:
    theirs = RACECHECK.replace("total(", "sm90_xmma_gemm(")
    assert parse(theirs, "racecheck") == [], "wherever the library's name stands"
    assert parse(MEMCHECK.replace("scale(const", "cutlass::gemm(const"), "memcheck"), "bad pointers are the caller's"


def test_conclusions() -> None:
    assert conclude("memcheck", 0, CLEAN) == []
    assert conclude("memcheck", FOUND, MEMCHECK)
    assert "no result within" in conclude("memcheck", None, "========= COMPUTE-SANITIZER\n")[0].detail
    failed = conclude("memcheck", 3, "RuntimeError: no kernel\n" + CLEAN)
    assert "RuntimeError: no kernel" in failed[0].detail
    with pytest.raises(DeviceError, match="could not run") as caught:
        conclude("memcheck", 1, "========= Error: unknown option '--tool'\n".replace("========= ", ""))
    assert "CUDA" in caught.value.remedy


def test_findings_change_the_verdict() -> None:
    passed = builders.evaluation()
    clean = merged(passed, [], 2.0)
    assert clean.verdict is Verdict.PASSED and clean.durations_s["sanitize"] == 2.0
    found = merged(passed, parse(MEMCHECK, "memcheck"), 2.0)
    assert found.verdict is Verdict.UNSAFE and found.reason.startswith("memcheck: Invalid __global__ write")
    assert len(found.violations) == 2 and found.profile is not None and reward(found).value == -1


def test_a_missing_tool_is_said_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cuda"):
        sanitizer.require_sanitizer(Device.CPU)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    if not Path("/usr/local/cuda/bin/compute-sanitizer").exists():
        with pytest.raises(DeviceError, match="compute-sanitizer was not found"):
            sanitizer.require_sanitizer(Device.CUDA)
    tool = tmp_path / "bin" / "compute-sanitizer"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    assert sanitizer.find_sanitizer() == tool
