"""MultiEdit."""

from __future__ import annotations

from pydantic import Field

from cuda_agent.agent.context import ToolContext
from cuda_agent.agent.tools.base import Arguments, Tool, ToolAnswer
from cuda_agent.agent.tools.replace import TextReplacement, replace


class MultiEditArguments(Arguments):
    """Several exact replacements in one file that was read before, one after the other; all of them or none."""

    path: str
    edits: tuple[TextReplacement, ...] = Field(min_length=1)


def _run(arguments: MultiEditArguments, context: ToolContext) -> ToolAnswer:
    text = context.files.read_known(arguments.path)
    total = 0
    for index, change in enumerate(arguments.edits, start=1):
        text, count = replace(text, change, f"{arguments.path}, edit {index}")
        total += count
    context.files.write(arguments.path, text)
    return ToolAnswer(f"Changed {arguments.path} in {total} place{'s' * (total > 1)}.", data={"replaced": total})


MULTI_EDIT = Tool("MultiEdit", MultiEditArguments, _run)
