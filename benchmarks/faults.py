"""Runs evaluations with a random fault in every third, and checks all verdicts and that nothing is left behind.

    .venv/bin/python benchmarks/faults.py                                   # 300 evaluations
    .venv/bin/python benchmarks/faults.py --count 12 --device cpu           # a short run
    .venv/bin/python benchmarks/faults.py --first 150 --count 150           # the second half of the same sequence

It checks the verdict, phase and reason of every evaluation; that no process and no GPU memory is left; and that host
memory (PSS of the judge and its workers, from the first honest evaluation on) grows by less than 200 MB.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any
from unittest import mock

from common import arguments, chosen_device, failed, run, save, table
from memory import pss_mib

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device
from cuda_agent.core.errors import CudaAgentError
from cuda_agent.core.records import Evaluation
from cuda_agent.core.stack import first_line
from cuda_agent.judge.case import Case
from cuda_agent.judge.session import JudgeSession
from cuda_agent.workers.process import fork_server_pids
from cuda_agent.workspace.descendants import descendants
from fault_specimens import HONEST, Fault, faults, faulty, small_axpby

MOST_GROWTH_MIB = 200.0
MOST_GPU_MIB = 64.0
EVERY = 3


def plan(kinds: list[str], seed: int, first: int, count: int) -> list[str]:
    """Returns the names of the evaluations: "honest", and in every third place a kind of fault. All kinds are equally
    frequent."""
    rng, deck, names = random.Random(seed), list[str](), list[str]()
    for index in range(first + count):
        if index % EVERY != EVERY - 1:
            names.append("honest")
            continue
        if not deck:
            deck = rng.sample(kinds, len(kinds))
        names.append(deck.pop())
    return names[first:]


def kill_candidate(stop: threading.Event) -> None:
    """Kills the worker that has loaded the candidate's library, as soon as one has."""
    while not stop.wait(0.02):
        for pid in descendants(os.getpid()):
            with contextlib.suppress(OSError):
                if "cuda_extension.so" in Path(f"/proc/{pid}/maps").read_text():
                    os.kill(pid, signal.SIGKILL)
                    return


def evaluate(session: JudgeSession, fault: Fault, device: Device, mark: int) -> Evaluation:
    candidate, stop = faulty(fault, device, mark), threading.Event()
    with contextlib.ExitStack() as stack:
        if fault.past_guard:
            stack.enter_context(mock.patch.object(Case, "_convict"))
        if fault.killed:
            killer = threading.Thread(target=kill_candidate, args=(stop,))
            stack.callback(killer.join)
            stack.callback(stop.set)
            killer.start()
        return session.evaluate(candidate)


def wrong(evaluation: Evaluation, fault: Fault) -> str:
    """Returns what is wrong with an evaluation, or ""."""
    said = f"{evaluation.verdict.value} in {evaluation.phase.value}: {evaluation.reason}"
    if evaluation.verdict not in fault.verdicts or evaluation.phase is not fault.phase:
        return f"{said}\n{evaluation.log_tail[-500:]}"
    if fault.words not in evaluation.reason + evaluation.log_tail:
        return f"{said} (without {fault.words!r})"
    return ""


def family_mib() -> float:
    return sum(pss_mib(pid)[0] for pid in (os.getpid(), *descendants(os.getpid())))


def gpu_mib(device: Device) -> float:
    """Returns the MiB of memory in use on the first visible GPU, by all processes."""
    if device is Device.CPU:
        return 0.0
    query = ("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits")
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] or "0"
    return float(first_line(*query, f"--id={chosen}") or "nan")


def own_gpu_memory_freed(device: Device) -> None:
    if device is Device.CUDA:
        import torch

        gc.collect()
        torch.cuda.empty_cache()


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="number of the first evaluation")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--limit-s", type=float, default=float("inf"), help="begin no evaluation after this many seconds"
    )
    options = parser.parse_args()
    device = chosen_device(options.device)
    kinds = faults(device)
    judge = JudgeOptions(
        device=device, timing_budget_s=0.3, trials=2, host_memory_mib=2048, compiler_jobs=4,
        call_timeout_s=3.0 if device is Device.CUDA else 12.0,
    )  # fmt: skip
    if device is Device.CUDA:
        import torch

        # The memory of this process's context belongs to the benchmark.
        torch.zeros(1, device="cuda")
    gpu_before, samples, started = gpu_mib(device), list[dict[str, Any]](), time.monotonic()
    with JudgeSession(small_axpby(), judge) as session:
        session.admit()
        # Baselines compile in the background once, for some minutes. That time isn't a fault's.
        session.baselines.wait()
        for place, name in enumerate(plan(sorted(kinds), options.seed, options.first, options.count), options.first):
            if time.monotonic() - started > options.limit_s:
                break
            samples.append(one(session, name, kinds.get(name, HONEST), device, place))
        family = {os.getpid(), *descendants(os.getpid())} - {os.getpid()}
    left = still_there(family)
    own_gpu_memory_freed(device)
    gpu_left = max(0.0, gpu_mib(device) - gpu_before)
    return report(options, device, samples, left, gpu_left)


def one(session: JudgeSession, name: str, fault: Fault, device: Device, place: int) -> dict[str, Any]:
    begin = time.monotonic()
    try:
        evaluation = evaluate(session, fault, device, place + 1)
        said, problem = evaluation.verdict.value, wrong(evaluation, fault)
    except CudaAgentError as error:
        said = type(error).__name__
        problem = f"{said}: {error}"
    seconds = time.monotonic() - begin
    sample = {"place": place, "kind": name, "verdict": said, "seconds": round(seconds, 3), "wrong": problem}
    sample |= {"memory_mib": round(family_mib(), 1), "processes": len(descendants(os.getpid()))}
    sample |= {"gpu_mib": gpu_mib(device)}
    print(f"{place}: {name}: {said}, {seconds:.1f} s {problem}", file=sys.stderr, flush=True)
    return sample


def still_there(pids: set[int]) -> list[int]:
    """Returns the processes that still run some seconds later, without zombies and what forks workers."""
    for _ in range(50):
        pids = {pid for pid in pids | set(descendants(os.getpid())) if pss_mib(pid)[0] > 0} - fork_server_pids()
        if not pids:
            break
        time.sleep(0.1)
    return sorted(pids)


def report(options: Any, device: Device, samples: list[dict[str, Any]], left: list[int], gpu_left: float) -> int:
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for sample in samples:
        groups[sample["kind"]].append(sample)
    rows = []
    for name, found in sorted(groups.items()):
        times = sorted(sample["seconds"] for sample in found)
        verdicts = ", ".join(sorted({sample["verdict"] for sample in found}))
        bad = sum(bool(sample["wrong"]) for sample in found)
        rows.append([name, str(len(found)), verdicts, str(bad), f"{times[len(times) // 2]:.1f}", f"{times[-1]:.1f}"])
    print(table(["kind", "evaluations", "verdict", "wrong", "median s", "longest s"], rows))
    honest = [sample["memory_mib"] for sample in samples if sample["kind"] == "honest"]
    growth = typical(honest[-5:]) - typical(honest[:5]) if honest else 0.0
    pace = 60 * len(samples) / max(1e-9, sum(sample["seconds"] for sample in samples))
    print(
        f"\n{len(samples)} evaluations, {pace:.1f} a minute; "
        f"host memory {growth:+.0f} MiB; processes left: {len(left)}; GPU memory left: {gpu_left:.0f} MiB"
    )
    found = {"samples": samples, "growth_mib": growth, "processes_left": left, "gpu_left_mib": gpu_left}
    print(f"raw samples: {save('faults', options, device, found)}")
    wrong_ones = [f"{s['place']} {s['kind']}: {s['wrong']}" for s in samples if s["wrong"]]
    if wrong_ones:
        failed(f"{len(wrong_ones)} wrong verdicts: " + "; ".join(wrong_ones)[:2000])
    if left:
        failed(f"processes left: {left}")
    if not gpu_left <= MOST_GPU_MIB:
        failed(f"{gpu_left:.0f} MiB of GPU memory left")
    if growth > MOST_GROWTH_MIB:
        failed(f"host memory grew by {growth:.0f} MiB")
    if len(samples) < options.count:
        failed(f"only {len(samples)} of {options.count} were made; go on with --first {options.first + len(samples)}")
    return 0


def typical(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


if __name__ == "__main__":
    run(main)
