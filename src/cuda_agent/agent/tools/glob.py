"""Glob."""

from __future__ import annotations

import re

from cuda_agent.agent.context import ToolContext
from cuda_agent.agent.tools.base import Arguments, Tool, ToolAnswer

_MAX = 500


class GlobArguments(Arguments):
    """List the workspace's files whose path matches a pattern: * and ? within a name, ** across folders."""

    pattern: str = "**"


def _run(arguments: GlobArguments, context: ToolContext) -> ToolAnswer:
    pattern = context.files.relative(arguments.pattern)
    matcher = glob_matcher(pattern)
    found = [path for path in context.files.walk() if matcher.fullmatch(path)]
    shown = found[:_MAX]
    text = "\n".join(shown) if shown else f"Nothing matches {arguments.pattern}."
    if len(found) > _MAX:
        text += f"\n[{len(found) - _MAX} more]"
    return ToolAnswer(text, data={"paths": shown})


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


GLOB = Tool("Glob", GlobArguments, _run)
