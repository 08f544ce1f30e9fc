"""Small candidates for the filter: good ones, and for each rule one that breaks it; hostile ones."""

from __future__ import annotations

from pathlib import Path

from cuda_agent.core.lines import append
from cuda_agent.core.records import Task
from cuda_agent.tasks.records import DatasetTask

_SOURCE = '''"""{says}"""

import torch
import torch.nn as nn

{outside}


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        {init}

    def forward(self, x):
        {forward}


def get_inputs():
    return [torch.randn({rows}, 128)]


def get_init_inputs():
    return [128]
'''

GOOD = {
    "linear_relu": "return torch.relu(self.linear(x))",
    "softmax": "return torch.softmax(x, dim=-1)",
}

#: name -> (the rule that it breaks, forward).
BROKEN = {
    "raises": ("runs", "raise ValueError('not today')"),
    "exits": ("runs", "import os; os._exit(0)"),
    "hangs": ("runs", "while True: pass"),
    "no_numbers": ("finite", "return torch.log(-x.abs() - 1)"),
    "without_bound": ("memory", "kept = [bytearray(1 << 26) for _ in range(1 << 20)]; return x"),
    "noise": ("stochastic", "return x + torch.randn_like(x)"),
    "own_noise": ("deterministic", "return x + torch.rand(x.shape, generator=self.own)"),
    "constant": ("varies", "return torch.zeros_like(x)"),
    "nearly_constant": ("varies", "return x * 1e-3 + 1"),
    "ignores": ("varies", "return torch.ones_like(x).cumsum(0) * self.linear.weight.sum()"),
    "drowned": ("null_tests", "return (x * 2e-5 + 1000) - 1000"),
    "branches": ("compiles", "return x.relu() if x.sum() > 0 else x.sigmoid()"),
}

#: what a task may try, each with the rules that may be named for it.
HOSTILE = {
    "forks": "import os\n        while True: os.fork()",
    "kills": "import os, signal; os.kill(os.getppid(), signal.SIGKILL); return x",
    "writes": "[open(f'/tmp/{i}', 'wb').write(bytes(1 << 20)) for i in range(8)]; return torch.relu(self.linear(x))",
    "leaves": (
        "import os\n        if os.fork() == 0:\n            os.setsid()\n            import time; time.sleep(600)\n"
        "        raise ValueError('left a process behind')"
    ),
}


def candidate(name: str, forward: str, number: int = 0, rows: int = 64) -> DatasetTask:
    init = "self.own = torch.Generator()" if "self.own" in forward else "self.features = features"
    source = _SOURCE.format(says=name, outside="", init=init, forward=forward, rows=rows)
    return DatasetTask(
        task=Task(name=name, source=source, origin="torch#2"), ops=("linear", "relu"), composer="test", number=number
    )


def write_candidates(folder: Path, forwards: dict[str, str]) -> list[DatasetTask]:
    """Into the folder's file, in order."""
    tasks = [candidate(name, forward, number) for number, (name, forward) in enumerate(forwards.items())]
    append(folder / "candidates.jsonl", tasks)
    return tasks
