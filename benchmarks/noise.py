"""A/A: judges the same program as candidate and as baseline many times, and measures how far the ratio is from 1.

    .venv/bin/python benchmarks/noise.py --out runs/noise                      # 200 evaluations, then 10 processes
    .venv/bin/python benchmarks/noise.py --out runs/noise --limit-s 540        # begin none after 540 s; call it again
    .venv/bin/python benchmarks/noise.py --out runs/noise --table              # print the table of saved evaluations
    .venv/bin/python benchmarks/noise.py --out runs/noise --device cpu --count 30 --processes 5

OUT/evaluations.jsonl has evaluations with one session for each kernel and a fresh candidate worker for each evaluation.
OUT/processes.jsonl has evaluations with a separate judge in a separate process for each. Every line holds the raw
samples of its rounds; OUT/stack.json holds the stack. Saved evaluations aren't measured again.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cuda_agent.agent.device import resolve_device
from cuda_agent.core import intervals
from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device
from cuda_agent.core.stack import read_stack
from cuda_agent.judge.stability import KERNELS, KnownKernel, Sample, same_twice, spread, summarize
from cuda_agent.report.tables.evaluation import stack_line
from cuda_agent.report.units import microseconds

WORST, COVERAGE = 0.05, 0.90
#: the bounds of the ratios of separate processes. The time of a 5 µs kernel is mostly its launch.
SPREAD, SPREAD_SHORTEST = 0.01, 0.03
HEADER = (
    "kernel", "runs", "void", "µs", "median ratio", "worst", "intervals hold 1.0", "those over 10 restarts",
    "± typical", "rounds", "s each",
)  # fmt: skip


def evaluations(kernel: KnownKernel, options: JudgeOptions, missing: int, path: Path, end: float) -> None:
    """Runs evaluations in one session and saves each at once."""
    if missing <= 0 or time.monotonic() > end:
        return
    with same_twice(kernel, options) as once:
        for index in range(missing):
            if time.monotonic() > end:
                print(f"time limit: {missing - index} of {kernel.label} not begun; call this again", file=sys.stderr)
                return
            sample = once()
            save(path, sample)
            said = (
                f"{sample.ratio:.4f} [{sample.low:.4f}, {sample.high:.4f}]" if sample.ratio else f"void: {sample.void}"
            )
            print(f"{kernel.label} {index + 1}/{missing}: {said}, {sample.seconds:.1f} s", file=sys.stderr, flush=True)


def in_a_process(kernel: KnownKernel, arguments: argparse.Namespace, path: Path) -> None:
    """Runs an evaluation with its own judge."""
    command = [sys.executable, __file__, "--out", str(path.parent), "--device", arguments.device]
    command += ["--budget", str(arguments.budget), "--alone", kernel.label]
    begin = time.monotonic()
    code = subprocess.run(command, check=False).returncode
    print(
        f"{kernel.label}, own process: exit code {code}, {time.monotonic() - begin:.1f} s", file=sys.stderr, flush=True
    )


def save(path: Path, sample: Sample) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a") as stream:
        stream.write(json.dumps(asdict(sample), ensure_ascii=False) + "\n")


def read(path: Path) -> list[Sample]:
    if not path.exists():
        return []
    return [Sample(**{**json.loads(line), **_tuples(json.loads(line))}) for line in path.read_text().splitlines()]


def _tuples(data: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) for name, value in data.items() if isinstance(value, list)}


def table(kernels: Sequence[KnownKernel], samples: Sequence[Sample]) -> list[str]:
    """Returns Markdown with a row for each kernel."""
    lines = ["| " + " | ".join(HEADER) + " |", "|---" * len(HEADER) + "|"]
    for kernel in kernels:
        mine = [sample for sample in samples if sample.kernel == kernel.label]
        if not mine:
            continue
        found, rounds = summarize(mine), sorted(sample.rounds for sample in mine if sample.ratio)
        cells = [kernel.label, str(found.evaluations), str(found.void)]
        cells += [microseconds(found.latency_us) if found.latency_us else "—", number(found.median)]
        cells += [percent(found.worst), percent(found.coverage), percent(coverage_over_restarts(mine))]
        cells += [percent(found.half_width), str(rounds[len(rounds) // 2]) if rounds else "—"]
        cells.append(f"{found.seconds:.1f}" if found.seconds else "—")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def coverage_over_restarts(samples: Sequence[Sample], *, restarts: int = 10, draws: int = 1000) -> float | None:
    """Returns the share of intervals that contain 1, for ratios of this many workers drawn from all: the noise when
    restarts, not rounds, are sampled. Returns None where there are too few."""
    ratios = [s.ratio for s in samples if s.ratio is not None]
    if len(ratios) < restarts:
        return None
    rng = random.Random(0)
    found = [intervals.interval(rng.sample(ratios, restarts)) for _ in range(draws)]
    return sum(low <= 1.0 <= high for low, high in found) / draws


def acceptance(
    kernels: Sequence[KnownKernel], samples: Sequence[Sample], apart: Sequence[Sample], count: int
) -> list[str]:
    """Returns one line for each requirement."""
    good = [sample for sample in samples if sample.ratio is not None]
    worst = max((abs(sample.ratio - 1.0) for sample in good if sample.ratio is not None), default=1.0)
    held = sum(sample.covers for sample in good) / len(good) if good else 0.0
    lines = [
        verdict(f"{len(good)} of {count} A/A evaluations with a time", len(good) >= count),
        verdict(f"none differs by 5 % or more: the worst by {worst:.2%}", bool(good) and worst < WORST),
        verdict(f"95 % intervals, each of a fresh worker, hold 1.0 in {held:.1%} (wanted: 90 %)", held >= COVERAGE),
    ]
    for kernel in kernels:
        ratios = [sample.ratio for sample in apart if sample.kernel == kernel.label and sample.ratio is not None]
        found = spread(ratios)
        if found is None:
            continue
        allowed = SPREAD_SHORTEST if any(kernel is every[0] for every in KERNELS.values()) else SPREAD
        said = f"{kernel.label}: the ratio of {len(ratios)} separate processes spreads by {found:.2%}"
        lines.append(verdict(f"{said} (allowed {allowed:.0%})", found <= allowed))
    return lines


def verdict(said: str, passed: bool) -> str:
    return f"{'pass' if passed else 'FAIL'}  {said}"


def percent(share: float | None) -> str:
    return "—" if share is None else f"{share:.2%}"


def number(value: float | None) -> str:
    return "—" if value is None else f"{value:.4f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the samples")
    parser.add_argument("--device", default="auto", choices=("auto", "cuda", "cpu"))
    parser.add_argument("--count", type=int, default=200, help="A/A evaluations over all kernels")
    parser.add_argument("--processes", type=int, default=10, help="separate processes for each of --apart")
    parser.add_argument("--kernels", nargs="+", help="only these, by label such as '5 µs'")
    parser.add_argument(
        "--apart", nargs="+", help="kernels judged in separate processes (default: the first and third)"
    )
    parser.add_argument("--budget", type=float, default=4.0, help="seconds of one profile's rounds")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="begin nothing after this many seconds")
    parser.add_argument("--table", action="store_true", help="only print the table")
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    end = time.monotonic() + arguments.limit_s
    named = arguments.device != "auto" and arguments.table
    device = Device(arguments.device) if named else resolve_device(arguments.device)
    options = JudgeOptions(device=device, timing_budget_s=arguments.budget)
    every = KERNELS[device]
    kernels = [kernel for kernel in every if arguments.kernels is None or kernel.label in arguments.kernels]
    apart_path, path = arguments.out / "processes.jsonl", arguments.out / "evaluations.jsonl"
    if arguments.alone:
        kernel = next(kernel for kernel in every if kernel.label == arguments.alone)
        with same_twice(kernel, options) as once:
            save(apart_path, once())
        return 0
    if not arguments.table:
        measure(kernels, every, arguments, options, end)
    samples, apart = read(path), read(apart_path)
    print("\n".join([*table(kernels, samples), "", *acceptance(kernels, samples, apart, arguments.count)]))
    print(f"\nStack: {stack_line(read_stack())}")
    return 0


def measure(
    kernels: Sequence[KnownKernel],
    every: Sequence[KnownKernel],
    arguments: argparse.Namespace,
    options: JudgeOptions,
    end: float,
) -> None:
    """Measures what isn't saved yet."""
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "stack.json").write_text(read_stack().model_dump_json(indent=1))
    path, apart_path = arguments.out / "evaluations.jsonl", arguments.out / "processes.jsonl"
    each = -(-arguments.count // len(kernels))
    for kernel in kernels:
        had = sum(sample.kernel == kernel.label and not sample.void for sample in read(path))
        evaluations(kernel, options, each - had, path, end)
    chosen = arguments.apart or [every[0].label, every[2].label]
    for kernel in (kernel for kernel in every if kernel.label in chosen):
        had = sum(sample.kernel == kernel.label and not sample.void for sample in read(apart_path))
        for _ in range(arguments.processes - had):
            if time.monotonic() > end:
                print("time limit: separate processes not begun; call this again", file=sys.stderr)
                return
            in_a_process(kernel, arguments, apart_path)


if __name__ == "__main__":
    sys.exit(main())
