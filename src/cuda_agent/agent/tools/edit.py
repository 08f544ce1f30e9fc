"""Edit."""

from __future__ import annotations

from cuda_agent.agent.context import ToolContext
from cuda_agent.agent.tools.base import Tool, ToolAnswer
from cuda_agent.agent.tools.replace import TextReplacement, replace


class EditArguments(TextReplacement):
    """Replace an exact piece of text in a file that was read before."""

    path: str


def _run(arguments: EditArguments, context: ToolContext) -> ToolAnswer:
    text = context.files.read_known(arguments.path)
    changed, count = replace(text, arguments, arguments.path)
    context.files.write(arguments.path, changed)
    return ToolAnswer(f"Changed {arguments.path} in {count} place{'s' * (count > 1)}.", data={"replaced": count})


EDIT = Tool("Edit", EditArguments, _run)
