"""Read."""

from __future__ import annotations

from pydantic import Field

from cuda_agent.agent.context import Context
from cuda_agent.agent.tools.base import Answer, Arguments, Tool


class ReadArguments(Arguments):
    """Read a text file of the workspace (or logs/… of this run). Lines come with their numbers."""

    path: str
    offset: int = Field(default=1, ge=1, description="first line, counted from 1")
    limit: int = Field(default=2000, ge=1, le=10000, description="lines at most")


def _run(arguments: ReadArguments, context: Context) -> Answer:
    text = context.files.read(arguments.path)
    lines = text.splitlines()
    first = arguments.offset - 1
    chosen = lines[first : first + arguments.limit]
    if not chosen:
        return Answer(f"{arguments.path} has {len(lines)} lines.", data={"lines": len(lines)})
    shown = "\n".join(f"{first + index + 1:>6}\t{line}" for index, line in enumerate(chosen))
    rest = len(lines) - first - len(chosen)
    more = f"\n[{rest} more lines]" if rest > 0 else ""
    return Answer(shown + more, data={"lines": len(lines)})


READ = Tool("Read", ReadArguments, _run)
