"""The tools that find files and text."""

import re
import subprocess
import time

from pydantic import Field

from cuda_agent.agent.context import ToolContext
from cuda_agent.agent.files import CallRefused
from cuda_agent.agent.tools.base import Tool, ToolAnswer

_MAX_PATHS = 500
_TIMEOUT_S = 20
_MAX_LINES = 400
_MAX_LINE = 400


class Glob(Tool):
    """List the workspace's files whose path matches a pattern: * and ? within a name, ** across folders."""

    pattern: str = "**"

    def run(self, context: ToolContext) -> ToolAnswer:
        found = _matching(context, self.pattern)
        shown = found[:_MAX_PATHS]
        text = "\n".join(shown) if shown else f"Nothing matches {self.pattern}."
        if len(found) > _MAX_PATHS:
            text += f"\n[{len(found) - _MAX_PATHS} more]"
        return ToolAnswer(text, data={"paths": shown})


class Grep(Tool):
    """Search the workspace's files for an extended regular expression. Gives path:line:text."""

    pattern: str = Field(min_length=1)
    glob: str = Field(default="**", description="only files whose path matches")
    ignore_case: bool = False

    def run(self, context: ToolContext) -> ToolAnswer:
        paths = _matching(context, self.glob)
        if not paths:
            return ToolAnswer(f"No file matches {self.glob}.", data={"matches": 0})
        command = ["grep", "-E", "-n", "-I", *(["-i"] if self.ignore_case else []), "-e", self.pattern]
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


def _matching(context: ToolContext, pattern: str) -> list[str]:
    matcher = glob_matcher(context.files.relative(pattern))
    return [path for path in context.files.walk() if matcher.fullmatch(path)]


def glob_matcher(pattern: str) -> re.Pattern[str]:
    """Returns a pattern in which `**/` matches any number of folders and a final `**` everything below."""
    out = ""
    index = 0
    while index < len(pattern):
        if pattern.startswith("**/", index):
            out, index = out + "(?:[^/]+/)*", index + 3
        elif pattern.startswith("**", index):
            out, index = out + ".*", index + 2
        else:
            out += {"*": "[^/]*", "?": "[^/]"}.get(pattern[index], re.escape(pattern[index]))
            index += 1
    return re.compile(out)


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
