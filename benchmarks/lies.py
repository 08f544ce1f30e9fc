"""Lets a worker's clocks lie, and prints what the judge finds of it and what it pays.

    .venv/bin/python benchmarks/lies.py                                  # all kernels, all lies, once
    .venv/bin/python benchmarks/lies.py --kernels "0.2 ms" --lies 0.05 0.5 --count 3

The program under test is the reference itself, whose worker says `lie` times the truth. `truth` is what the same
program is paid without a lie. `claimed` is what its events say, `paid` the time that the verdict shows, each as a share
of the truth. `gain` is what the reward takes from it, the lower end of the ratio to eager: 1 or less is no gain. A lie
that is convicted gets nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from common import arguments, chosen_device, run, save, table

from cuda_agent.core.baselines import EAGER
from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device
from cuda_agent.judge.profile.profile import Profiled
from cuda_agent.judge.session import JudgeSession
from cuda_agent.judge.stability import KERNELS, KnownKernel, timed_again

LIES = (0.05, 0.2, 0.5, 0.8, 0.9, 0.95)
SHORT = {
    Device.CPU: (
        KnownKernel("5 µs", "torch.relu(x)", (4096,)),
        KnownKernel("50 µs", "torch.tanh(x)", (32, 1024)),
    ),
    Device.CUDA: (),
}
_SLOW_CLOCKS = """
import time
import torch
_tick, _elapsed = time.perf_counter_ns, torch.cuda.Event.elapsed_time
time.perf_counter_ns = lambda: int(_tick() * {lie})
torch.cuda.Event.elapsed_time = lambda self, other: _elapsed(self, other) * {lie}
"""


def outcome(found: Profiled) -> dict[str, Any]:
    """Returns what a timing says: `ended` is a rule, a verdict or "passed"."""
    if found.report is None:
        rules = sorted({violation.rule for violation in found.violations})
        said = "; ".join(violation.detail for violation in found.violations)
        return {"ended": ", ".join(rules) or str(found.fault and found.fault.verdict), "said": said}
    mine, ratio = found.report.candidate, found.report.ratios[EAGER]
    eager = found.report.baselines[EAGER].latency_us
    figures = {
        "paid_us": mine.latency_us,
        "claimed_us": mine.event_us,
        "eager_us": eager,
        "rounds": found.report.rounds,
    }
    return {"ended": "passed", "ratio": ratio.value, "low": ratio.low, "notes": found.report.notes, **figures}


def row(kernel: KnownKernel, lie: float, truth_us: float, found: dict[str, Any]) -> list[str]:
    cells = [kernel.label, f"{lie:g}", f"{truth_us:,.1f}", found["ended"]]
    if found["ended"] != "passed":
        return [*cells, "", "", ""]
    return [*cells, *(f"{found[key] / truth_us:.2f}" for key in ("claimed_us", "paid_us")), f"{found['low']:.2f}"]


def measure(session: JudgeSession, kernel: KnownKernel, lies: Sequence[float], count: int) -> list[dict[str, Any]]:
    """Times one kernel without a lie, then with each, and prints what came of it."""
    samples = []
    honest = [outcome(timed_again(session)) for _ in range(max(2, count))]
    truths = sorted(one["paid_us"] for one in honest if one["ended"] == "passed")
    if not truths:
        print(f"{kernel.label}: no honest timing: {honest[0]}", flush=True)
        return []
    truth_us = truths[len(truths) // 2]
    for lie in [1.0, *lies]:
        for each in range(count):
            found = honest[each] if lie == 1.0 else outcome(timed_again(session, _SLOW_CLOCKS.format(lie=lie)))
            samples.append({"kernel": kernel.label, "lie": lie, "truth_us": truth_us, **found})
            print(" | ".join(row(kernel, lie, truth_us, found)), flush=True)
    return samples


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--count", type=int, default=1, help="evaluations of each lie")
    parser.add_argument("--kernels", nargs="+", help="only these, by label such as '5 µs'")
    parser.add_argument("--lies", nargs="+", type=float, default=LIES)
    parser.add_argument("--budget", type=float, default=3.0, help="seconds of one evaluation's rounds")
    options = parser.parse_args()
    device: Device = chosen_device(options.device)
    judge = JudgeOptions(device=device, timing_budget_s=options.budget)
    samples = []
    for kernel in (*SHORT[device], *KERNELS[device]):
        if options.kernels is None or kernel.label in options.kernels:
            with JudgeSession(kernel.task(), judge) as session:
                session.baselines.eager_only = True
                samples += measure(session, kernel, options.lies, options.count)
    header = ["kernel", "lie", "truth µs", "ended", "claimed", "paid", "gain"]
    labels = {kernel.label: kernel for kernel in (*SHORT[device], *KERNELS[device])}
    rows = [row(labels[one["kernel"]], one["lie"], one["truth_us"], one) for one in samples]
    print("\n" + table(header, rows))
    print(f"raw samples: {save('lies', options, device, {'samples': samples})}")
    return 0


if __name__ == "__main__":
    run(main)
