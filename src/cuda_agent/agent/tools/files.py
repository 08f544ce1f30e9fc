"""The tools that read and change files."""

from pydantic import Field

from cuda_agent.agent.context import ToolContext
from cuda_agent.agent.files import CallRefused
from cuda_agent.agent.tools.base import Arguments, Tool, ToolAnswer

#: characters of one answer of Read, below `output.MAX_CHARACTERS`, so that a page is never cut.
_PAGE = 15_000


class Read(Tool):
    """Read a text file of the workspace (or logs/… of this run), a page at a time. Lines come with their numbers."""

    path: str
    offset: int = Field(default=1, ge=1, description="first line, counted from 1")
    limit: int = Field(default=2000, ge=1, le=10000, description="lines at most")
    column: int = Field(default=1, ge=1, description="where to begin in the first line, for lines longer than a page")

    def run(self, context: ToolContext) -> ToolAnswer:
        lines = context.files.read(self.path).splitlines()
        if self.offset > len(lines):
            return ToolAnswer(f"{self.path} has {len(lines)} lines.", data={"lines": len(lines)})
        last = min(len(lines), self.offset - 1 + self.limit)
        shown: list[str] = []
        room, line, column = _PAGE, self.offset, self.column
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
        return ToolAnswer("\n".join(shown) + self._following(line, column, len(lines)), data={"lines": len(lines)})

    def _following(self, line: int, column: int, count: int) -> str:
        """Returns the call that reads the next part, or "" at the end."""
        if line > count:
            return ""
        where = f"offset={line}" + (f", column={column}" if column > 1 else "")
        left = f"{count - line + 1} more lines" if column == 1 else "the line goes on"
        return f"\n[{left}, {count} in all: Read(path={self.path!r}, {where})]"


class Write(Tool):
    """Write a whole file: model_new.py, or one under kernels/ (.cu .cuh .cpp .h .hpp). An existing file must have
    been read first."""

    path: str
    content: str

    def run(self, context: ToolContext) -> ToolAnswer:
        created = context.files.write(self.path, self.content)
        done = f"{'Created' if created else 'Replaced'} {self.path} ({len(self.content.splitlines())} lines)."
        return ToolAnswer(done, data={"created": created})


class TextReplacement(Arguments):
    """One exact replacement."""

    old: str = Field(min_length=1, description="text as it stands in the file, unique unless replace_all")
    new: str
    replace_all: bool = False

    def apply(self, text: str, shown: str) -> tuple[str, int]:
        """Returns the changed text and the number of changes. Raises CallRefused if `old` is missing or not unique."""
        count = text.count(self.old)
        if self.old == self.new:
            raise CallRefused(f"{shown}: old and new are the same.")
        if count == 0:
            remedy = "Read it and copy the text exactly, blanks included"
            raise CallRefused(f"{shown}: the old text isn't in the file. {remedy}.")
        if count > 1 and not self.replace_all:
            raise CallRefused(f"{shown}: the old text occurs {count} times. Give more of it, or set replace_all.")
        return text.replace(self.old, self.new), count


class Edit(TextReplacement, Tool):
    """Replace an exact piece of text in a file that was read before."""

    path: str

    def run(self, context: ToolContext) -> ToolAnswer:
        text, count = self.apply(context.files.read_known(self.path), self.path)
        return _changed(context, self.path, text, count)


class MultiEdit(Tool):
    """Several exact replacements in one file that was read before, one after the other; all of them or none."""

    path: str
    edits: tuple[TextReplacement, ...] = Field(min_length=1)

    def run(self, context: ToolContext) -> ToolAnswer:
        text = context.files.read_known(self.path)
        total = 0
        for index, change in enumerate(self.edits, start=1):
            text, count = change.apply(text, f"{self.path}, edit {index}")
            total += count
        return _changed(context, self.path, text, total)


def _changed(context: ToolContext, path: str, text: str, count: int) -> ToolAnswer:
    context.files.write(path, text)
    return ToolAnswer(f"Changed {path} in {count} place{'s' * (count > 1)}.", data={"replaced": count})
