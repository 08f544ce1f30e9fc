"""A policy that submits existing kernels: `files:DIR` writes the files that DIR holds for a task and has them judged.

DIR/ID or DIR/NAME (the benchmark's id of the task, or its name) is a folder like a workspace, with `model_new.py` and
`kernels/`, or a run directory, which contains a workspace.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cuda_agent.agent.policy import Brief
from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.errors import PolicyError, UsageError
from cuda_agent.core.records import Candidate, PolicyMove, ToolCall, Turn
from cuda_agent.workspace.layout import Workspace


class FilesPolicy:
    """Writes, compiles, verifies, profiles and finishes. The next step follows from the turns alone."""

    def __init__(self, brief: Brief, folder: Path) -> None:
        self.name = f"files:{folder}"
        self._brief = brief
        self._folder = folder

    def next(self, history: Sequence[Turn]) -> PolicyMove:
        """Raises PolicyError when it has finished."""
        if not history:
            return self._begin()
        last = history[-1]
        tools = [call.tool for call in last.calls]
        failed = next((pair for pair in zip(last.calls, last.results, strict=False) if not pair[1].ok), None)
        if "Finish" in tools:
            raise PolicyError("There is nothing left to do", "Start a new run")
        if failed is not None:
            return self._finish(history, f"{failed[0].tool}: {failed[1].first_line}", "gave_up")
        # Without kernels there is nothing to compile; the judge compares or refuses the module.
        built = any(str(call.arguments.get("path", "")).startswith("kernels/") for call in last.calls)
        if tools == ["Profile"]:
            return self._finish(history, f"{last.results[0].data.get('latency_us', 0.0):,.1f} us", "finished")
        following = {"Write": "Compile" if built else "Verify", "Compile": "Verify", "Verify": "Profile"}[tools[0]]
        arguments = {"precise": True} if following == "Profile" else {}
        return PolicyMove(calls=(self._call(history, following, **arguments),))

    def _begin(self) -> PolicyMove:
        try:
            found = self._found()
        except UsageError as error:
            return self._finish((), f"{error}", "gave_up")
        if found is None:
            wanted = " or ".join(dict.fromkeys(filter(None, (self._brief.id, self._brief.task.name))))
            return self._finish((), f"{self._folder} holds no folder {wanted}: no kernel for this task", "gave_up")
        where, candidate = found
        if "model_new.py" not in candidate.files:
            return self._finish((), f"{where} holds no model_new.py", "gave_up")
        calls = [
            ToolCall(id=f"call-{number}", tool="Write", arguments={"path": path, "content": text})
            for number, (path, text) in enumerate(sorted(candidate.files.items()), start=1)
        ]
        return PolicyMove(message=f"Kernels from {where}.", calls=tuple(calls))

    def _found(self) -> tuple[Path, Candidate] | None:
        """Returns the folder and its candidate, or None. Raises UsageError if the folder holds no candidate."""
        root = self._folder.resolve()
        for name in filter(None, (self._brief.id, self._brief.task.name)):
            folder = root / name
            # The task's author chose its name, so it may be a path.
            if name in (".", "..") or folder.parent != root or not folder.is_dir():
                continue
            inside = folder / "workspace"
            place = inside if inside.is_dir() and not (folder / "model_new.py").exists() else folder
            options = JudgeOptions(device=self._brief.device)
            return place, Workspace(place.resolve(), self._brief.task, options).snapshot()
        return None

    def _finish(self, history: Sequence[Turn], message: str, outcome: str) -> PolicyMove:
        return PolicyMove(calls=(self._call(history, "Finish", message=message, outcome=outcome),))

    def _call(self, history: Sequence[Turn], tool: str, **arguments: Any) -> ToolCall:
        return ToolCall(id=f"call-{1 + sum(len(turn.calls) for turn in history)}", tool=tool, arguments=arguments)
