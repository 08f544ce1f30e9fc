"""Measures the peak of a GPU's memory by step of the judge: `python benchmarks/device_memory.py TASK.py…`.

It runs `cuda-agent optimize` on each task alone and reads the memory that the GPU has in use every 0.1 s, less what was
in use before. A step is a line of progress. The bound is the reference's own peak + 2 × (inputs + outputs) + 2 GiB.
The processes' contexts count too. Needs `nvidia-smi`.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from common import save

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device
from cuda_agent.core.records import Task
from cuda_agent.judge import JudgeSession
from cuda_agent.workers.buffers import extent_bytes

GIB = 1 << 30
_COMMAND = (sys.executable, "-c", "from cuda_agent.cli.main import main; main()")
_QUERY = ("nvidia-smi", "--id=0", "--query-gpu=memory.used", "--format=csv,noheader,nounits")
#: a line of progress: seconds, step, text.
_PROGRESS = re.compile(r"^\s*[\d.]+ s  (\w+)\s+(.*)$")
#: numbers and names that differ between lines of one step.
_DETAIL = re.compile(r"[\d.,]+\S*|\([^)]*\)")


def used_gib() -> float:
    return int(subprocess.run(_QUERY, capture_output=True, text=True, check=True).stdout) / 1024


def peaks(file: Path, options: list[str]) -> dict[str, float]:
    """Returns the peak in GiB of each step, in order."""
    before, step, found = used_gib(), "start", dict[str, float]()

    def watch(sampler: subprocess.Popen[str]) -> None:
        assert sampler.stdout is not None
        for line in sampler.stdout:
            found[step] = max(found.get(step, 0.0), int(line) / 1024 - before)

    with tempfile.TemporaryDirectory() as folder:
        command = [*_COMMAND, "optimize", str(file), "--out", f"{folder}/run", *options]
        sampler = subprocess.Popen([*_QUERY, "--loop-ms=100"], stdout=subprocess.PIPE, text=True)
        watcher = threading.Thread(target=watch, args=(sampler,))
        watcher.start()
        try:
            with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
                assert process.stderr is not None
                for line in process.stderr:
                    said = _PROGRESS.match(line)
                    if said is not None:
                        step = f"{said[1]}: {' '.join(_DETAIL.sub(' ', said[2]).split())[:40]}"
        finally:
            sampler.kill()
            watcher.join()
    return found


def bound_gib(file: Path) -> tuple[float, float]:
    """Returns (inputs and outputs, the bound) in GiB."""
    task = Task(name=file.stem, source=file.read_text())
    with JudgeSession(task, JudgeOptions(device=Device.CUDA)) as session:
        spec = session.reference.spec
    both = sum(map(extent_bytes, (*spec.inputs, *spec.outputs)))
    return both / GIB, (spec.peak_bytes + 2 * both) / GIB + 2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="file for the peaks (JSON), default in runs/bench")
    parser.add_argument("tasks", nargs="+", type=Path, help="task files")
    parser.add_argument("--budget", default="3", help="--timing-budget of each")
    options = parser.parse_args()
    rows = {}
    for file in options.tasks:
        moved, bound = bound_gib(file)
        found = peaks(file, ["--timing-budget", options.budget])
        rows[file.stem] = {"inputs_and_outputs_gib": moved, "bound_gib": bound, "peaks_gib": found}
        worst = max(found, key=lambda step: found[step])
        print(f"{file.stem}: {moved:.1f} GiB in and out, peak {found[worst]:.1f} GiB in {worst}, bound {bound:.1f} GiB")
        for step, peak in found.items():
            print(f"  {peak:6.1f}  {step}")
    save("device_memory", options, Device.CUDA, {"tasks": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
