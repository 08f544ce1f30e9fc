"""The golden runs, and how they are recorded anew:

    .venv/bin/python tests/golden/renew_golden.py

`NAME/transcript.jsonl` is a recorded run, `NAME/files.json` the candidate that it ended with. Look at the difference
before you commit it: a golden run changes only when a tool is meant to do something else.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from cuda_agent.agent.best import Best
from cuda_agent.agent.budget import Accounts
from cuda_agent.agent.context import Session, ToolContext
from cuda_agent.agent.files import WorkspaceFiles
from cuda_agent.agent.loop import run
from cuda_agent.agent.shell import open_shell
from cuda_agent.agent.storage.journal import RunJournal
from cuda_agent.agent.tools.registry import Toolbox
from cuda_agent.core.config import JudgeOptions, Limits
from cuda_agent.core.enums import Device
from cuda_agent.core.records import Candidate, PolicyMove, Task, ToolCall, Turn
from cuda_agent.workspace import layout

HERE = Path(__file__).parent


def _call(tool: str, **arguments: Any) -> ToolCall:
    return ToolCall(id=tool, tool=tool, arguments=arguments)


def _replace(old: str, new: str, **more: Any) -> dict[str, Any]:
    return {"old": old, "new": new, **more}


#: turns of calls; only tools that need no judge.
RUNS: dict[str, list[list[ToolCall]]] = {
    "edits": [
        [_call("Read", path="model.py"), _call("Glob", pattern="kernels/**/*")],
        [
            _call("Write", path="kernels/scale.cpp", content="int scale(int x) {\n  return 2 * x;\n}\n"),
            _call("Write", path="model_new.py", content="import cuda_extension\n\nFACTOR = 2\nOTHER = 2\n"),
        ],
        [_call("Edit", path="kernels/scale.cpp", **_replace("2 * x", "3 * x"))],
        [_call("MultiEdit", path="model_new.py", edits=[_replace("FACTOR = 2", "FACTOR = 3"), _replace("OTHER", "W")])],
        [_call("Edit", path="model_new.py", **_replace(" = ", "=", replace_all=True))],
        [_call("Bash", command="sed -i 's/int x/long x/' kernels/scale.cpp && cat kernels/scale.cpp")],
        [_call("Edit", path="kernels/scale.cpp", **_replace("3 * x", "4 * x"))],
        [
            _call("Read", path="kernels/scale.cpp"),
            _call("Edit", path="kernels/scale.cpp", **_replace("3 * x", "4 * x")),
        ],
        [_call("Bash", command="cd kernels && mkdir inner && cp scale.cpp inner/copy.cpp && rm scale.cpp")],
        [_call("Grep", pattern="long x"), _call("Finish", message="done")],
    ],
    "mistakes": [
        [_call("Write", path="model_new.py", content="one = 1\n")],
        [_call("Wriet", path="model_new.py", content="x"), _call("Write", path="model_new.py")],
        [_call("Write", path="model.py", content="x"), _call("Write", path="utils/verification.py", content="x")],
        [_call("Write", path="../outside.py", content="x"), _call("Write", path="/tmp/outside.cu", content="x")],
        [_call("Write", path="kernels/../../outside.cu", content="x"), _call("Read", path="/etc/passwd")],
        [
            _call("Edit", path="model_new.py", **_replace("two", "three")),
            _call("Edit", path="none.py", **_replace("a", "b")),
        ],
        [_call("Bash", command="echo two = 2 >> model_new.py"), _call("Write", path="model_new.py", content="lost\n")],
        [_call("Bash", command="ln -s /etc/hostname kernels/link.h"), _call("Read", path="kernels/link.h")],
        [_call("Bash", command="rm kernels/link.h; echo x > model.py"), _call("Bash", command="exit 3")],
        [_call("BashOutput", shell_id="shell-99"), _call("KillBash", shell_id="shell-99")],
        [_call("Finish", message="nothing", outcome="gave_up")],
    ],
}  # fmt: skip


class Recorded:
    """Plays the moves of a run again."""

    name = "recorded"

    def __init__(self, moves: Sequence[Sequence[ToolCall]]) -> None:
        self._moves = moves

    def next(self, history: Sequence[Turn]) -> PolicyMove:
        return PolicyMove(message=f"move {len(history) + 1}", calls=tuple(self._moves[len(history)]))


def play(moves: Sequence[Sequence[ToolCall]], directory: Path) -> tuple[list[Turn], Candidate]:
    """The turns in a fresh workspace inside `directory`, and the candidate that is there at the end."""
    (directory / "logs").mkdir(parents=True)
    options = JudgeOptions(device=Device.CPU)
    task = Task(name="golden", source="class Model: ...\n")
    workspace = layout.create(task, directory / "workspace", options=options)
    with open_shell(workspace, hidden=(directory,)) as shell:
        files = WorkspaceFiles(workspace.directory, directory / "logs")
        # No tool of the judge is called.
        context = ToolContext(workspace, cast(Session, None), files, shell, Best(directory), directory / "logs")
        tools = Toolbox(context)
        journal = RunJournal(directory, tools, Accounts(Limits(turns=len(moves))))
        run(Recorded(moves), tools, journal, lambda phase, text: None)
        return journal.turns, workspace.snapshot()


def comparable(turn: Turn) -> Turn:
    """Without what was measured."""
    results = tuple(result.model_copy(update={"duration_s": 0.0}) for result in turn.results)
    return turn.model_copy(update={"results": results, "duration_s": 0.0, "budget": None})


def main() -> int:
    for name, moves in RUNS.items():
        folder = HERE / name
        folder.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory() as temporary:
            turns, candidate = play(moves, Path(temporary) / "run")
        lines = [comparable(turn).model_dump_json(exclude_defaults=True) for turn in turns]
        (folder / "transcript.jsonl").write_text("\n".join(lines) + "\n")
        (folder / "files.json").write_text(json.dumps(candidate.files, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
