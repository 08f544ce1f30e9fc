"""A benchmark of three tiny tasks with a scripted policy, in a process of its own that can be killed at any moment.

    python benched.py OUT begin|resume

One passes, one doesn't parse, one is stochastic.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from cuda_agent.agent.policy import Brief
from cuda_agent.bench.options import BenchOptions
from cuda_agent.bench.run import Bench, begin, go_on
from cuda_agent.bench.suite import problem_of
from cuda_agent.core.config import JudgeOptions, OptimizeOptions
from cuda_agent.core.enums import Device
from cuda_agent.core.records import PolicyMove, Task, Turn
from integration.scripted_runs import FILES, SOURCE, call, move, writes

STOCHASTIC = SOURCE.replace("torch.sigmoid(y)", "torch.bernoulli(torch.sigmoid(y))")
TASKS = {"broken": "def (:", "stochastic": STOCHASTIC, "gated": SOURCE}


class Script:
    """What comes next follows from the turns alone, so that a killed run goes on alike."""

    name = "script"

    def __init__(self, brief: Brief) -> None:
        read, profile = move(call("Read", path="model.py")), move(call("Profile", precise=True))
        self._moves = [read, writes(FILES), profile, move(call("Finish", message="done"))]

    def next(self, history: Sequence[Turn]) -> PolicyMove:
        return self._moves[len(history)]


def open_bench(out: Path, verb: str) -> Bench:
    if verb == "begin":
        problems = [problem_of(Task(name=name, source=source)) for name, source in TASKS.items()]
        judge = JudgeOptions(device=Device.CPU, timing_budget_s=0.5)
        options = BenchOptions(run=OptimizeOptions(judge=judge, policy="script"))
        bench = begin(["tiny"], problems, options, out, policy=Script)
    else:
        bench = go_on(out, policy=Script)
    bench.jobs = 2
    return bench


if __name__ == "__main__":
    open_bench(Path(sys.argv[1]), sys.argv[2]).play()
