"""Grep."""

from __future__ import annotations

import subprocess
import time

from pydantic import Field

from cuda_agent.agent.context import ToolContext
from cuda_agent.agent.files import CallRefused
from cuda_agent.agent.tools.base import Arguments, Tool, ToolAnswer
from cuda_agent.agent.tools.glob import glob_matcher

_TIMEOUT_S = 20
_MAX_LINES = 400
_MAX_LINE = 400


class GrepArguments(Arguments):
    """Search the workspace's files for an extended regular expression. Gives path:line:text."""

    pattern: str = Field(min_length=1)
    glob: str = Field(default="**", description="only files whose path matches")
    ignore_case: bool = False


def _run(arguments: GrepArguments, context: ToolContext) -> ToolAnswer:
    matcher = glob_matcher(context.files.relative(arguments.glob))
    paths = [path for path in context.files.walk() if matcher.fullmatch(path)]
    if not paths:
        return ToolAnswer(f"No file matches {arguments.glob}.", data={"matches": 0})
    command = ["grep", "-E", "-n", "-I", *(["-i"] if arguments.ignore_case else []), "-e", arguments.pattern]
    deadline = time.monotonic() + _TIMEOUT_S
    lines: list[str] = []
    for path in paths:
        try:
            text = context.files.peek(path)
        except CallRefused:
            continue
        if time.monotonic() > deadline:
            raise CallRefused(f"The search took longer than {_TIMEOUT_S} s. Name fewer files with glob.")
        lines += [f"{path}:{line}"[:_MAX_LINE] for line in _matches(command, text, deadline)]
    text = "\n".join(lines[:_MAX_LINES]) or "No match."
    if len(lines) > _MAX_LINES:
        text += f"\n[{len(lines) - _MAX_LINES} more lines]"
    return ToolAnswer(text, data={"matches": len(lines)})


def _matches(command: list[str], text: str, deadline: float) -> list[str]:
    """Returns the matching lines of `text`. The program grep takes linear time; a pattern can make Python's `re`
    hang."""
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=max(0.1, deadline - time.monotonic()),
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise CallRefused(f"The search took longer than {_TIMEOUT_S} s. Use a simpler pattern.") from None
    if done.returncode > 1:
        raise CallRefused(f"{done.stderr.strip() or 'grep failed'}. Give an extended regular expression (grep -E).")
    return done.stdout.splitlines()


GREP = Tool("Grep", GrepArguments, _run)
