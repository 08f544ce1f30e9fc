"""Checks whether the playbook's plans compute the same as their tasks: each is built, run and compared with float64.

    .venv/bin/cuda-agent tasks compose DIR --count 200 --seed 11 --window-ms 0.008 0.03 --memory-gb 0.012
    .venv/bin/python benchmarks/agreement.py DIR/candidates.jsonl --device cpu --jobs 2      # with seeds.jsonl
    .venv/bin/python benchmarks/agreement.py data/candidates.jsonl.gz --count 200 --jobs 8   # on a GPU

Two plans of a task are two rows. A row is wrong where an output's relative L2 error is above 1e-4 and above ten times
eager's error, or where more than a thousandth of integers differ. The judge has stricter bounds; this check is faster
and covers many tasks. Each task's code runs in its own process, but without a sandbox: use it only for your own tasks.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import subprocess
import sys
import time
import types
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from common import arguments, chosen_device, read_tasks, run, save, table

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.errors import NotCovered
from cuda_agent.core.records import Candidate
from cuda_agent.judge.build.extension import build_extension
from cuda_agent.playbook.proposal import Proposal, proposals
from cuda_agent.workers.inside.graph.capture import capture
from cuda_agent.workers.inside.task.taskmodule import load_task_module, make_init_inputs

#: the most seconds of one task.
LIMIT_S = 240
ALLOWED, TIMES_EAGER, WHOLE = 1e-4, 10.0, 1e-3


# ---------------------------------------------------------------- one task, in its own process


def tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for item in inner for tensor in tensors(item)]


def doubled(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    return [doubled(item) for item in value] if isinstance(value, (list, tuple)) else value


def wrong(mine: torch.Tensor, eager: torch.Tensor, truth: torch.Tensor) -> str | None:
    """Returns why an output differs from the task's, or None where it doesn't."""
    if (mine.shape, mine.dtype) != (eager.shape, eager.dtype):
        return f"{mine.dtype}{list(mine.shape)} instead of {eager.dtype}{list(eager.shape)}"
    if not eager.is_floating_point():
        share = (mine != eager).float().mean().item() if eager.numel() else 0.0
        return f"{share:.1%} of the numbers differ" if share > WHOLE else None
    norm = truth.double().norm().item() + 1e-30
    own, plain = ((one.double() - truth).norm().item() / norm for one in (mine, eager))
    return None if own <= max(ALLOWED, TIMES_EAGER * plain) else f"error {own:.1e}, eager's {plain:.1e}"


def loaded(proposal: Proposal, device: Device) -> types.SimpleNamespace:
    """Builds the extension and returns the candidate's module. Raises RuntimeError where it doesn't compile."""
    built = build_extension(Candidate(files=dict(proposal.files)), JudgeOptions(device=device))
    if built.library is None:
        raise RuntimeError(built.report.log[-400:])
    spec = importlib.util.spec_from_file_location("cuda_extension", built.library)
    assert spec is not None and spec.loader is not None
    sys.modules["cuda_extension"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["cuda_extension"])
    namespace: dict[str, Any] = {"__name__": "model_new"}
    exec(compile(proposal.files["model_new.py"], "model_new.py", "exec"), namespace)
    return types.SimpleNamespace(**namespace)


def judged(source: str, device: Device, plan: int) -> tuple[str, int]:
    """Returns `right` or what is wrong with this plan, and the task's number of plans."""
    torch.manual_seed(0)
    # An oracle in float64 is compared at full precision.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    task = load_task_module(source, "task")
    init = make_init_inputs(task)
    model = task.Model(*init.args, **init.kwargs).eval().requires_grad_(False).to(device.value)
    inputs = [one.to(device.value) if isinstance(one, torch.Tensor) else one for one in task.get_inputs()]
    found = proposals(capture(model, inputs, task), device, Precision.FP32)
    candidate = loaded(found[plan], device).ModelNew(*init.args, **init.kwargs).eval().to(device.value)
    with torch.no_grad():
        candidate.load_state_dict(model.state_dict())
        mine = tensors(candidate(*inputs))
        eager = tensors(model(*inputs))
        try:
            truth = tensors(model.double()(*doubled(inputs)))
        except (RuntimeError, TypeError, ValueError):  # some operators have no float64
            truth = eager
    if len(mine) != len(eager):
        return f"{len(mine)} results instead of {len(eager)}", len(found)
    reasons = [wrong(*three) for three in zip(mine, eager, truth, strict=True)]
    return next((reason for reason in reasons if reason is not None), "right"), len(found)


def one(options: argparse.Namespace, device: Device) -> int:
    source = read_tasks(options.tasks)[options.only]["source"]
    try:
        found = judged(source, device, options.plan)
    except NotCovered as error:
        found = f"not covered: {error.cause}", 0
    print(json.dumps(found))
    return 0


# ---------------------------------------------------------------- all tasks


def asked(path: Path, index: int, device: Device, plan: int) -> tuple[str, int]:
    """Runs `judged` in its own process."""
    command = [sys.executable, __file__, str(path), "--device", device.value, "--only", str(index), "--plan", str(plan)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"not done within {LIMIT_S} s", 0
    if done.returncode:
        return f"ended with {done.returncode}: {(done.stderr.strip().splitlines() or [''])[-1][:300]}", 0
    said, count = json.loads(done.stdout.strip().splitlines()[-1])
    return str(said), int(count)


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("tasks", type=Path, help="JSON lines of tasks, or .gz")
    parser.add_argument("--count", type=int, help="number of tasks, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="tasks at a time")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="begin no further task after this")
    parser.add_argument("--only", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--plan", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    device = chosen_device(options.device)
    warnings.simplefilter("ignore")
    if options.only is not None:
        return one(options, device)
    names = [task["name"] for task in read_tasks(options.tasks)]
    order = list(range(len(names)))
    random.Random(options.seed).shuffle(order)
    begin, rows = time.monotonic(), dict[str, str]()

    def plans(index: int) -> None:
        plan, count = 0, 1
        while plan < count and time.monotonic() - begin < options.limit_s:
            said, known = asked(options.tasks, index, device, plan)
            count, plan = max(count, known), plan + 1
            rows[f"{names[index]}, plan {plan}"] = said
            if said != "right":
                print(f"{names[index]}, plan {plan}: {said}", file=sys.stderr, flush=True)

    with ThreadPoolExecutor(options.jobs) as threads:
        list(threads.map(plans, order[: options.count]))
    counts = Counter(
        "right" if s == "right" else "not covered" if s.startswith("not covered") else "wrong" for s in rows.values()
    )
    print(table(["", "plans"], [[name, str(count)] for name, count in counts.most_common()]))
    print(f"\n{time.monotonic() - begin:.0f} s; raw samples: {save('agreement', options, device, {'plans': rows})}")
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    run(main)
