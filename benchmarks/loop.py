"""Measures the agent loop's time per turn without the model, the judge and the work of commands, and its memory.

    .venv/bin/python benchmarks/loop.py                          # 200 turns, prints the table
    .venv/bin/python benchmarks/loop.py --turns 200 --save OUT   # also OUT/loop.json with every turn and the stack

A scripted policy writes, changes, reads and searches files in a real workspace with a real shell. Its moves have as
much text as a language model's. The time of a turn includes writing the move, snapshots, tools and writing the turn.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from cuda_agent.agent.best import Best
from cuda_agent.agent.budget import Accounts
from cuda_agent.agent.context import Session, ToolContext
from cuda_agent.agent.files import WorkspaceFiles
from cuda_agent.agent.loop import run
from cuda_agent.agent.policy import PolicyMove
from cuda_agent.agent.shell import open_shell
from cuda_agent.agent.storage.journal import RunJournal
from cuda_agent.agent.tools.registry import Toolbox
from cuda_agent.core.config import JudgeOptions, Limits
from cuda_agent.core.enums import Device
from cuda_agent.core.records import Task, ToolCall, Turn
from cuda_agent.core.stack import read_stack
from cuda_agent.workspace import layout

#: characters of a kernel, and of a message beside a call.
_KERNEL, _REASONING = 8_000, 4_000
_KERNELS = 12


class Scripted:
    """A policy with four kinds of turn in rotation. It records when each is requested."""

    name = "scripted"

    def __init__(self, turns: int) -> None:
        self._turns = turns
        self.asked: list[tuple[float, float]] = []

    def next(self, history: Sequence[Turn]) -> PolicyMove:
        self.asked.append((time.perf_counter(), time.process_time()))
        turn = len(history)
        return PolicyMove(message="m" * 200, reasoning="r" * _REASONING, calls=(self._call(turn),), tokens_in=60_000)

    def _call(self, turn: int) -> ToolCall:
        path = f"kernels/k{turn // 4 % _KERNELS}.cpp"
        if turn == self._turns - 1:
            return _call("Finish", message="done")
        kinds = (
            _call("Write", path=path, content=f"// {turn}\n" + "x = 1;\n" * (_KERNEL // 7)),
            _call("Read", path=path),
            _call("Edit", path=path, old=f"// {turn - 2}\n", new=f"// {turn}\n"),
            _call("Grep", pattern="torch"),
        )
        return kinds[turn % 4]


def _call(tool: str, **arguments: Any) -> ToolCall:
    return ToolCall(id="call", tool=tool, arguments=arguments)


def measure(turns: int) -> dict[str, Any]:
    """Returns the milliseconds of each turn (wall clock and CPU time of this process) and the resident MiB after it."""
    policy, memory = Scripted(turns), []
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        (directory / "logs").mkdir()
        options = JudgeOptions(device=Device.CPU)
        workspace = layout.create(Task(name="loop", source="x = 1\n"), directory / "workspace", options=options)
        with open_shell(workspace, hidden=(directory,)) as shell:
            files = WorkspaceFiles(workspace.directory, directory / "logs")
            # The script calls no tool of the judge.
            context = ToolContext(workspace, cast(Session, None), files, shell, Best(directory), directory / "logs")
            tools = Toolbox(context)
            journal = RunJournal(directory, tools, Accounts(Limits(turns=turns)))
            ending = run(
                policy, tools, journal, lambda phase, text: None, watch=lambda journal: memory.append(resident_mib())
            )
            end = (time.perf_counter(), time.process_time())
        failed = [turn.index for turn in journal.turns for result in turn.results if not result.ok]
        size = (directory / "transcript.jsonl").stat().st_size / 2**20
    times = [*policy.asked, end]
    pairs = list(itertools.pairwise(times))
    return {
        "turns": len(journal.turns),
        "outcome": ending.outcome.value,
        "failed": failed,
        "wall_ms": [1e3 * (after[0] - before[0]) for before, after in pairs],
        "process_ms": [1e3 * (after[1] - before[1]) for before, after in pairs],
        "memory_mib": memory,
        "transcript_mib": size,
        "stack": read_stack().model_dump(mode="json"),
    }


def resident_mib() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    return 0.0


def table(found: dict[str, Any]) -> str:
    """Returns a row for the first and the last turns, and the growth of memory."""
    lines = ["| turns | wall, median ms | wall, 95 % ms | process, median ms | memory MiB |", "|---|---|---|---|---|"]
    last = found["turns"]
    for first, end in ((10, 30), (last // 2 - 10, last // 2 + 10), (last - 20, last)):
        wall, process = found["wall_ms"][first:end], found["process_ms"][first:end]
        high = sorted(wall)[int(0.95 * len(wall))]
        cells = (statistics.median(wall), high, statistics.median(process), found["memory_mib"][end - 1])
        lines.append(f"| {first + 1}–{end} | " + " | ".join(f"{cell:.1f}" for cell in cells) + " |")
    grown = found["memory_mib"][-1] - found["memory_mib"][9]
    lines += [
        "",
        f"Memory from turn 10 to turn {last}: {grown:+.1f} MiB (transcript {found['transcript_mib']:.1f} MiB).",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--save", type=Path, help="folder for loop.json")
    options = parser.parse_args()
    found = measure(options.turns)
    print(table(found))
    if options.save is not None:
        options.save.mkdir(parents=True, exist_ok=True)
        (options.save / "loop.json").write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
