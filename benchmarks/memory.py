"""Measures the peak host memory of a command and its processes: `python benchmarks/memory.py -- cuda-agent optimize …`.

It sums the PSS (shared pages are counted once) of the process tree every 0.2 s, from /proc. Shared memory, which holds
the judge's tensor buffers on the CPU, is printed separately. Linux only.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

INTERVAL_S = 0.2
PROC = Path("/proc")


def parents() -> dict[int, int]:
    """Returns PID -> parent's PID for every process that can be read."""
    found = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            found[int(entry.name)] = int(fields[1])
    return found


def grow(known: set[int]) -> set[int]:
    """Returns the known processes that still exist, and their descendants. Known processes keep theirs when they are
    reparented."""
    table = parents()
    alive = {pid for pid in known if pid in table}
    while True:
        more = {pid for pid, parent in table.items() if parent in alive and pid not in alive}
        if not more:
            return alive
        alive |= more


def pss_mib(pid: int) -> tuple[float, float]:
    """Returns PSS and its part in shared memory in MiB; zeros when the process has ended."""
    try:
        lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return 0.0, 0.0
    sizes = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines}
    return sizes.get("Pss", 0.0), sizes.get("Pss_Shmem", 0.0)


def name(pid: int) -> str:
    """Returns the end of the command line, which identifies a Python process."""
    try:
        words = (PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return "?"
    text = " ".join(word for word in words if word)
    return text if len(text) <= 90 else f"{text[:40]} … {text[-45:]}"


def left_behind(known: set[int]) -> list[str]:
    """Returns the processes that still run some seconds after the command ended."""
    for _ in range(20):
        known = grow(known)
        if not known:
            break
        time.sleep(INTERVAL_S)
    return [f"{pid} {name(pid)}" for pid in sorted(known)]


def main() -> int:
    command = sys.argv[1:]
    if command[:1] == ["--"]:
        command = command[1:]
    if not command:
        print(__doc__)
        return 2
    process = subprocess.Popen(command)
    known, samples = {process.pid}, 0
    peak, peak_without, at_peak = 0.0, 0.0, []
    while process.poll() is None:
        known = grow(known)
        sizes = {pid: pss_mib(pid) for pid in known}
        total = sum(size for size, _ in sizes.values())
        shared = sum(shared for _, shared in sizes.values())
        peak_without = max(peak_without, total - shared)
        if total > peak:
            peak = total
            at_peak = sorted(
                ((size, part, name(pid)) for pid, (size, part) in sizes.items() if size > 10), reverse=True
            )
        samples += 1
        time.sleep(INTERVAL_S)
    print(f"\npeak PSS {peak:.0f} MiB, without shared memory {peak_without:.0f} MiB ({samples} samples); at the peak:")
    for size, part, label in at_peak:
        print(f"{size:8.0f} MiB ({part:.0f} shared)  {label}")
    left = left_behind(known - {process.pid})
    print(f"processes left behind: {len(left)}", *left, sep="\n  ")
    return process.returncode


if __name__ == "__main__":
    sys.exit(main())
