"""A run of 40 turns with a scripted policy, in a process of its own that can be killed at any moment.

    python killed_runs.py RUN begin|resume [MARK]

Every request to the policy and every answer is noted in `RUN.requests`, beside the run directory, so that a test can
count them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cuda_agent.agent.optimize import optimize, resume
from cuda_agent.agent.policy import Brief
from cuda_agent.core.records import PolicyMove, ToolCall, Turn

TURNS = 40
COMPILED = (19, 33)
SOURCE = """import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x + 1


def get_inputs():
    return [torch.randn(64, 64)]


def get_init_inputs():
    return []
"""
KERNEL = '#include <cstdint>\n\nextern "C" int64_t step() {\n  return 0;\n}\n'


def _call(number: int, tool: str, **arguments: Any) -> ToolCall:
    return ToolCall(id=f"call-{number}", tool=tool, arguments=arguments)


def moves(turn: int) -> PolicyMove:
    """What is asked in a turn: files are written, changed, read and searched; commands leave files half-way."""
    if turn == 0:
        calls = [_call(0, "Write", path="kernels/step.cpp", content=KERNEL)]
        calls.append(_call(1, "Write", path="model_new.py", content="value = 0\n"))
    elif turn == TURNS - 1:
        calls = [_call(0, "Bash", command="rm -r kernels model_new.py"), _call(1, "Finish", message="done")]
    elif turn in COMPILED:
        calls = [_call(0, "Compile")]
    elif turn % 4 == 1:
        calls = [_call(0, "Edit", path="model_new.py", old=f"value = {turn // 4}\n", new=f"value = {turn // 4 + 1}\n")]
        calls.append(_call(1, "Read", path="model_new.py"))
    elif turn % 4 == 2:
        # Not idempotent, and slow enough to be killed inside.
        command = (
            f"echo a{turn} >> notes.txt; mkdir -p more/d{turn}; sleep 0.2; echo b{turn} >> notes.txt; cat notes.txt"
        )
        calls = [_call(0, "Bash", command=command), _call(1, "Bash", command="rm -rf more/d*; wc -l < notes.txt")]
    elif turn % 4 == 3:
        calls = [_call(0, "Write", path=f"kernels/k{turn % 3}.h", content=f"// {turn}\n")]
        calls.append(_call(1, "Nonsense"))
    else:
        calls = [_call(0, "Glob", pattern="**/*"), _call(1, "Read", path=f"kernels/k{turn % 3}.h")]
    return PolicyMove(message=f"turn {turn}", calls=tuple(calls), tokens_in=100 + turn, tokens_out=10, cost=0.001)


class Noting:
    """Plays `moves`, and notes each request before and after it."""

    name = "noting"

    def __init__(self, notes: Path) -> None:
        self._notes = notes

    def __call__(self, brief: Brief) -> Noting:
        return self

    def next(self, history: Sequence[Turn]) -> PolicyMove:
        with self._notes.open("a") as stream:
            stream.write(json.dumps({"asked": len(history)}) + "\n")
        return moves(len(history))


def main(directory: Path, verb: str) -> int:
    policy = Noting(directory.with_suffix(".requests"))
    if verb == "resume" and (directory / "config.json").exists():
        run = resume(directory, policy=policy)
    else:
        task = directory.with_suffix(".py")
        task.write_text(SOURCE)
        run = optimize(task, out=directory, policy=policy, device="cpu", turns=TURNS)
    return 0 if run.outcome == "finished" else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
