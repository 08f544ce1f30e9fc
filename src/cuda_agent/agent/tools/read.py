"""Read."""

from __future__ import annotations

from pydantic import Field

from cuda_agent.agent.context import ToolContext
from cuda_agent.agent.tools.base import Arguments, Tool, ToolAnswer

#: below `output.MAX_CHARACTERS`, so that a page is never cut.
_PAGE = 15_000


class ReadArguments(Arguments):
    """Read a text file of the workspace (or logs/… of this run), a page at a time. Lines come with their numbers."""

    path: str
    offset: int = Field(default=1, ge=1, description="first line, counted from 1")
    limit: int = Field(default=2000, ge=1, le=10000, description="lines at most")
    column: int = Field(default=1, ge=1, description="where to begin in the first line, for lines longer than a page")


def _run(arguments: ReadArguments, context: ToolContext) -> ToolAnswer:
    lines = context.files.read(arguments.path).splitlines()
    if arguments.offset > len(lines):
        return ToolAnswer(f"{arguments.path} has {len(lines)} lines.", data={"lines": len(lines)})
    last = min(len(lines), arguments.offset - 1 + arguments.limit)
    shown: list[str] = []
    room, line, column = _PAGE, arguments.offset, arguments.column
    while line <= last:
        rest = lines[line - 1][column - 1 :]
        # A line that doesn't fit begins the next page, unless it wouldn't fit there either.
        if len(rest) + 8 > room and (shown or len(rest) + 8 <= _PAGE):
            break
        piece = rest[: room - 8]
        shown.append(f"{line:>6}\t{piece}")
        room -= len(piece) + 8
        if len(piece) < len(rest):
            column += len(piece)
            break
        line, column = line + 1, 1
    return ToolAnswer("\n".join(shown) + _following(arguments, line, column, len(lines)), data={"lines": len(lines)})


def _following(arguments: ReadArguments, line: int, column: int, count: int) -> str:
    """Returns the call that reads the next part, or "" at the end."""
    if line > count:
        return ""
    where = f"offset={line}" + (f", column={column}" if column > 1 else "")
    left = f"{count - line + 1} more lines" if column == 1 else "the line goes on"
    return f"\n[{left}, {count} in all: Read(path={arguments.path!r}, {where})]"


READ = Tool("Read", ReadArguments, _run)
